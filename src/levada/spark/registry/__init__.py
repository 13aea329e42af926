"""Schemas of a Confluent-compatible schema registry: its client, and values in Confluent's wire format."""
