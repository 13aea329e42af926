"""The transaction coordinator's decisions: the machine behind a partition of `__transaction_state`."""
