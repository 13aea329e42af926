"""Runs a broker: partitions, coordinators, controller, delayed responses and background tasks."""
