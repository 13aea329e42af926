"""Sockets: the listener that serves clients, and the small client that peers, tools and pipelines use."""
