"""Record batches to Arrow columns and back; JSON and Avro values."""
