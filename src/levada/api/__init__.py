"""One function per API key of Kafka's protocol, in modules by noun."""
