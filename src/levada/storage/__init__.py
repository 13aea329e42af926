"""The edge to the disk: segments, indexes and logs in Kafka's layout."""
