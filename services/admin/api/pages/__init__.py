"""Routes of the console's pages."""
