"""What is counted where messages pass. Pure; how it is exposed is `mqservice`'s."""
