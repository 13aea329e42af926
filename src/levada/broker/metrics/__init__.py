"""Metrics of a broker: counted by its parts, and served for Prometheus."""
