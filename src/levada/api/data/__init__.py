"""Handlers of records: Produce, Fetch, ListOffsets, DeleteRecords, OffsetForLeaderEpoch."""
