"""The producer: batches, the sender, transactions."""
