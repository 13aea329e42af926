"""RE2 patterns of topic names, matched in linear time."""
