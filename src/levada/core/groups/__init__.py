"""Groups of consumers: the state machine of a partition of `__consumer_offsets`."""
