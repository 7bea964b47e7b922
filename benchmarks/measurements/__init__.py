"""One module for each thing measured. Each returns rows; none knows which system it asks."""
