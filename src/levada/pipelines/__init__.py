"""Ready-made pipelines on Spark: from topics to lakes and back, and from topics to topics.

The pipelines are functions, loaded on first use, so that importing a part does not import pyspark. The parts of the
flows (functions from DataFrame to DataFrame) and their reports are in the modules of `levada.pipelines.flows`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from levada.pipelines.errors import LakeError, PipelineError
    from levada.pipelines.flows.activity import activity
    from levada.pipelines.flows.devices import devices
    from levada.pipelines.flows.service_logs import logs, search
    from levada.pipelines.flows.sql import sql
    from levada.pipelines.lake.archive import archive
    from levada.pipelines.lake.history import history, query_history
    from levada.pipelines.lake.replay import replay
    from levada.pipelines.lake.tables import register
    from levada.pipelines.runs.progress import Progress
    from levada.pipelines.runs.queries import RunningPipeline

__all__ = [
    "LakeError",
    "PipelineError",
    "Progress",
    "RunningPipeline",
    "activity",
    "archive",
    "devices",
    "history",
    "logs",
    "query_history",
    "register",
    "replay",
    "search",
    "sql",
]

_MODULES = {
    "LakeError": "errors",
    "PipelineError": "errors",
    "Progress": "runs.progress",
    "RunningPipeline": "runs.queries",
    "activity": "flows.activity",
    "archive": "lake.archive",
    "devices": "flows.devices",
    "history": "lake.history",
    "logs": "flows.service_logs",
    "query_history": "lake.history",
    "register": "lake.tables",
    "replay": "lake.replay",
    "search": "flows.service_logs",
    "sql": "flows.sql",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'levada.pipelines' has no attribute {name!r}")
    from importlib import import_module

    from levada.extras import required

    with required("spark"):
        return getattr(import_module(f"levada.pipelines.{_MODULES[name]}"), name)
