"""The store: CommitLog, ConsumeQueues, IndexFiles, StoreCheckpoint, and how they are recovered after a crash."""
