"""gRPC over HTTP/2 for servers: a state machine without I/O (`connection`) and its thin asyncio part (`server`)."""
