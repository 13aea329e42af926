"""The coordinator runtime: shards of groups and transactions, their journals, timers and pending responses."""
