"""`python -m tandemmq.broker.slave`: a broker that must be a slave; refuses settings of the other role."""

from __future__ import annotations

import sys

from tandemmq.broker.__main__ import run_broker

if __name__ == "__main__":
    sys.exit(run_broker(sys.argv[1:], program="broker-slave", home_role="slave"))
