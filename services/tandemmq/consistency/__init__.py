"""The consistency job: proves on a schedule that all replicas of every broker group hold the same log."""
