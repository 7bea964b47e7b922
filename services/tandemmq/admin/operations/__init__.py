"""What operators ask of a cluster and do to it: one model behind console, REST, gRPC and command line."""
