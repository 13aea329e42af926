"""The mark of tests that stop, kill or look into a broker, and so need one that they have started."""

import os

import pytest

own_broker = pytest.mark.skipif(
    bool(os.environ.get("COMPAT_BOOTSTRAP")), reason="needs a broker of its own, not that of COMPAT_BOOTSTRAP"
)
