"""The runtime of group and transaction coordinators: shards, journals, responses."""
