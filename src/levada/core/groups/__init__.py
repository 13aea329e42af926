"""Groups of consumers: the machine behind a partition of `__consumer_offsets`."""
