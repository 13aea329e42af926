"""Imports message modules on first use: importing all of them at start would take seconds.

Inside `lazy_imports()` an import statement of a versioned message module binds an unloaded module; the first
attribute access loads it. Type checkers and readers see an ordinary import:

    with lazy_imports():
        import kio.schema.heartbeat.v4 as heartbeat

    heartbeat.response.HeartbeatResponse(...)        # loads here

Two threads may load a module at the same time: its body only imports names, so running it twice is harmless.
"""

import builtins
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:
    Loader = MetaPathFinder = object  # importlib.abc is slow to import and only its types are needed

LAZY_MODULES = re.compile(r"kio\.schema\.\w+\.v\d+|levada\.wire\.schema\.shapes\.\w+")


def _load_phantom_types() -> None:
    """Load kio's base module without hypothesis.

    kio imports hypothesis if it is installed, which costs a broker or a client time and memory and serves only kio's
    own tests. The one module that imports it runs with an `__import__` that raises ImportError for hypothesis.
    """
    name = "kio.static._phantom"
    if name in sys.modules or "hypothesis" in sys.modules:
        return
    spec = find_spec(name)
    assert spec is not None and spec.loader is not None

    def import_(module: str, *arguments: Any) -> ModuleType:
        if module.partition(".")[0] == "hypothesis":
            raise ImportError(module)
        return builtins.__import__(module, *arguments)

    phantom = module_from_spec(spec)
    phantom.__dict__["__builtins__"] = vars(builtins) | {"__import__": import_}
    sys.modules[name] = phantom
    spec.loader.exec_module(phantom)


def import_now(name: str) -> ModuleType:
    """Import a message module at once."""
    _load_phantom_types()
    return import_module(name)


class _Unloaded(ModuleType):
    """A module whose body has not run; the first attribute access runs it."""

    def __getattr__(self, name: str) -> object:
        spec = self.__spec__
        assert spec is not None and isinstance(spec.loader, _LazyLoader)
        _load_phantom_types()
        self.__class__ = ModuleType  # type: ignore[assignment]  # from here on an ordinary module
        try:
            spec.loader.body.exec_module(self)
        except BaseException:
            self.__class__ = _Unloaded
            raise
        return getattr(self, name)


class _LazyLoader(Loader):
    """Defers the execution of a module's body."""

    def __init__(self, body: Loader) -> None:
        self.body = body

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.body.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = _Unloaded


class _LazyFinder(MetaPathFinder):
    """Finds the message modules; all other modules are left to Python's finders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if LAZY_MODULES.fullmatch(fullname) is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LazyLoader(spec.loader)
        return spec


_finder = _LazyFinder()


@contextmanager
def lazy_imports() -> Iterator[None]:
    """Defer imports of message modules inside the `with` block until first use."""
    sys.meta_path.insert(0, _finder)
    try:
        yield
    finally:
        sys.meta_path.remove(_finder)
