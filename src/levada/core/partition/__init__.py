"""Decisions of one partition: producer state, fetch sessions."""
