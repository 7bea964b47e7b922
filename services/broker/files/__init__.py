"""The real disk below a broker's store."""
