"""Pipelines that people need, ready to run: from topics to lakes and back, and from topics to topics, on Spark."""
