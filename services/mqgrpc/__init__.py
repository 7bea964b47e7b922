"""gRPC over HTTP/2 for servers: a state machine without I/O (`connection`) and its thin asyncio part (`server`)."""

from mqgrpc.connection import Connection
from mqgrpc.errors import ErrorCode
from mqgrpc.hpack import Header
from mqgrpc.limits import Limits, Usage
from mqgrpc.request_head import RequestShape
from mqgrpc.server import Server, TlsMode
from mqgrpc.stream import Stream, StreamMaker

__all__ = [
    "Connection",
    "ErrorCode",
    "Header",
    "Limits",
    "RequestShape",
    "Server",
    "Stream",
    "StreamMaker",
    "TlsMode",
    "Usage",
]
