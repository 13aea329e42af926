"""Pipelines from topics to topics: website activity, devices, service logs, SQL."""
