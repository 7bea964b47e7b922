"""What a broker knows beside its messages: topics, subscription groups, progress; RocketMQ's files and versions."""
