"""Stores of cluster metadata: topics, partitions, brokers, configs."""
