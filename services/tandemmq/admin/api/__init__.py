"""What the admin service answers: pages, REST, metrics and gRPC, all on one port."""
