"""Side-by-side benchmarks of Levada and Apache Kafka: `make bench` and, for daily use, `make bench-quick`."""
