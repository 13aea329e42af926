"""The edge to what brokers agree on: topics, partitions, configuration."""
