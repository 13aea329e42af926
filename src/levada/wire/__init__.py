"""Bytes and messages: pure translation between frames and Kafka's message classes."""
