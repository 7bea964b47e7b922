"""What a broker tells of itself in numbers."""
