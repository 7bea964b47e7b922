"""What operators do to a running broker: groups, offsets, settings. Without stubs; the edge is in `broker.api`."""
