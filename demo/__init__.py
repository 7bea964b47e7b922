"""Parts of `make demo`: what the official client runs, and what the files prove."""
