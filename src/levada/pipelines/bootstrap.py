"""The brokers of pipelines that are started in Python: the same default as that of the commands."""

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

BOOTSTRAP = "127.0.0.1:9092"

Function = TypeVar("Function", bound=Callable[..., Any])


def from_environment(function: Function) -> Function:
    """Let the argument `bootstrap` be LEVADA_BOOTSTRAP, if that is set and the caller names no brokers."""

    @wraps(function)
    def with_bootstrap(*arguments: Any, **given: Any) -> Any:
        if found := os.environ.get("LEVADA_BOOTSTRAP"):
            given.setdefault("bootstrap", found)
        return function(*arguments, **given)

    return cast(Function, with_bootstrap)
