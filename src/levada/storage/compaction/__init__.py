"""Log compaction: the cleaner, its process and the swap of cleaned segments."""
