"""Compaction as the broker runs it: which log is next, the cleaner process, its metrics."""
