"""Routes, broker liveness and queue choice."""
