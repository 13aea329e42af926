"""A partition's log on disk: segments, indexes, recovery, retention."""
