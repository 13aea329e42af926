"""Values of fields that many responses have."""

from datetime import timedelta

UNTHROTTLED = timedelta(0)  # throttle time: there are no quotas
AUTHORIZED_OPERATIONS_OMITTED = -(2**31)  # the client did not request them
