"""Who is master: the record that an authority keeps, and what this broker does about it."""
