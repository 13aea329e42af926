"""Message classes are imported on first use."""

import subprocess
import sys


def test_message_classes_load_on_first_use() -> None:
    """Start-up imports no message module: all of them would cost two seconds."""
    program = """
import sys
from levada.wire.schema import messages
from levada.wire.schema.lazy_imports import lazy_imports

with lazy_imports():
    import kio.schema.heartbeat.v4 as heartbeat
    import levada.wire.schema.shapes.produce as produce
with lazy_imports():
    import kio.schema.heartbeat.v4 as again

loaded = [name for name in sys.modules if name.startswith("kio.") and name.endswith((".request", ".response"))]
assert loaded == [], loaded
assert heartbeat is again
assert heartbeat.response.HeartbeatResponse.__api_key__ == 12
assert produce.TopicProduceData.__module__ == "levada.wire.schema.shapes.produce"
assert "kio.schema.produce.v13.request" in sys.modules
try:
    heartbeat.no_such_name
except AttributeError:
    pass
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", program], check=True)
