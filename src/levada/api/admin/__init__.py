"""Handlers of the cluster: metadata, topics, configs, log dirs, API versions, client telemetry."""
