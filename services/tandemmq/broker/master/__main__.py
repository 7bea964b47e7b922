"""`python -m tandemmq.broker.master`: a broker that must be a master; refuses settings of the other role."""

from __future__ import annotations

import sys

from tandemmq.broker.__main__ import run_broker

if __name__ == "__main__":
    sys.exit(run_broker(sys.argv[1:], program="broker-master", home_role="master"))
