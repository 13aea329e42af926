"""Topics in a data lake: archive, history and replay over Parquet files or a Delta table."""
