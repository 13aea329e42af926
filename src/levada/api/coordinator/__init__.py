"""Handlers of coordinators: groups, committed offsets, transactions, producer ids."""
