"""The brokers of pipelines that are started in Python."""

import inspect

import pytest

import levada.pipelines
from levada.pipelines.bootstrap import BOOTSTRAP, from_environment
from levada.pipelines.flows import activity, devices, sql


@from_environment
def brokers(*, bootstrap: str = BOOTSTRAP) -> str:
    return bootstrap


def test_the_variable_of_the_commands_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVADA_BOOTSTRAP", raising=False)
    assert brokers() == "127.0.0.1:9092"
    monkeypatch.setenv("LEVADA_BOOTSTRAP", "broker-1:9092")
    assert brokers() == "broker-1:9092"
    assert brokers(bootstrap="broker-2:9092") == "broker-2:9092"


def test_every_pipeline_and_report_has_this_default() -> None:
    public = [getattr(levada.pipelines, name) for name in levada.pipelines.__all__]
    functions = [one for one in public if inspect.isfunction(one) and "bootstrap" in inspect.signature(one).parameters]
    assert len(functions) == 9
    for function in [*functions, activity.report, devices.report, sql.query_topics]:
        assert hasattr(function, "__wrapped__"), function
