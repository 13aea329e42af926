"""Settings of brokers, topics and groups, declared once under Kafka's names."""
