"""Reading this broker's own store for those who prove replicas equal, and repairing it on demand."""
