"""A pipeline's run: its name, lock, state and queries."""
