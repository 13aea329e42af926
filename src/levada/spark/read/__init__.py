"""Topics to DataFrames: options, offsets, planning, fetching, rows."""
