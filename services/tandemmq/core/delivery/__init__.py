"""Delivery to consumer groups: leases with receipt handles, tag filters, and receives that wait."""
