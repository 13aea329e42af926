"""Logs on disk in Kafka's layout: segments, indexes, checkpoints, compaction."""
