"""DataFrames to topics: options, writers, tasks, transactions and the commit protocol."""
