"""What the admin service answers: JSON, metrics, the status page and gRPC, all on one port."""
