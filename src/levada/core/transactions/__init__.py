"""The transaction coordinator's decisions: the state machine of a partition of `__transaction_state`."""
