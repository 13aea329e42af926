"""Creates event loops: uvloop where it is installed, else asyncio's own."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop for `asyncio.Runner(loop_factory=...)` or a thread; uvloop is faster and behaves the same."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
