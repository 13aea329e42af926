"""Hand-tuned readers and writers of Produce, Fetch and OffsetCommit."""
