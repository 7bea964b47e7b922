"""Messages as RocketMQ stores them: record format, properties, tags codes, message ids. Imports nothing but offsets."""
