"""How long a client is asked to wait before its next request: never, until there are quotas."""

from datetime import timedelta

UNTHROTTLED = timedelta(0)
