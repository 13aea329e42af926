"""One function per API key of Kafka's protocol, in files by noun."""
