"""The consistency job: proves on a schedule that all replicas of every broker group hold the same log."""

import os

# Python starts Java by fork, and Spark its workers. gRPC has handlers for a fork, on by default, which stop its threads
# and start them again in parent and child; while another thread of ours calls a broker, the child now and then hangs or
# aborts in them before it becomes Java. No child of ours goes on with a channel of its parent, so we need none of them.
# gRPC reads this once, when its core is loaded. It stands here because Python runs this file before any module of the
# package, whatever starts it: a console script, `python -m`, the admin service, an executor, a user's Spark session.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
