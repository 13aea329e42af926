"""Runs of pipelines: name, lock, status, arguments, queries and their progress."""
