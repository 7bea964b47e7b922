"""What the console's pages show, and their templates."""
