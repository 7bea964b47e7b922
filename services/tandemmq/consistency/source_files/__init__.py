"""Where a replica's bytes come from: folders, object stores, brokers; all of them offer `ReplicaFiles`."""
