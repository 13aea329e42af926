"""Topics to topics: website activity, devices, service logs, SQL."""
