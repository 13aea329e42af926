"""Starts Spark with settings that suit topics, and finds or installs what it needs."""
