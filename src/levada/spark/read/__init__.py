"""Topics to DataFrames: options, offsets, planner, range fetcher and rows."""
