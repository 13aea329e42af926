"""The asyncio client: connections, metadata, producer, consumer, admin."""
