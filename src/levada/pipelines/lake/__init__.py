"""Topics in a lake: archive, history, replay; Parquet and Delta."""
