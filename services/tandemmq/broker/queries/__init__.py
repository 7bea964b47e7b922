"""Reads messages for operators: by place, by time, by key. Over the store as it lies there; no gRPC inside."""
