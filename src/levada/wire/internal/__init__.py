"""Record formats of the internal topics, as Kafka writes them."""
