"""Record batches to and from Arrow columns, and the formats of values: JSON and Avro."""
