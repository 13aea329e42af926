"""DataFrames to topics: options, tasks, transactions, the commit protocol."""
