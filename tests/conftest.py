"""What holds for every test."""

from __future__ import annotations

import os

from hypothesis import settings

# Spark is started by fork; what gRPC then does in the child, while others call, now and then ends it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# How long an example takes says what else the machine does.
settings.register_profile("any_machine", deadline=None)
settings.load_profile("any_machine")
