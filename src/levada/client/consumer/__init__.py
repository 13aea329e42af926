"""The consumer: fetches, positions, group membership."""
