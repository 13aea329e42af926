"""The extras of the package, and the command that adds one to this installation."""

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

PACKAGE = "levada"
CHECKOUT = Path(__file__).resolve().parents[2]


def install_command(extra: str) -> str:
    """The command that installs an extra, by how this package is installed: a checkout, a wheel, or from an index.

    The package may be on no index, so only paths that exist are named; otherwise the requirements of the extra are.
    """
    if (CHECKOUT / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{CHECKOUT}[{extra}]')}"
    try:
        installed = distribution(PACKAGE)
    except PackageNotFoundError:
        return f"pip install {shlex.quote(f'{PACKAGE}[{extra}]')}"
    source = _local_source(installed.read_text("direct_url.json"))
    if source is not None and source.exists():
        return f"pip install {shlex.quote(f'{source}[{extra}]')}"
    return shlex.join(["pip", "install", *requirements(installed.requires or (), extra)])


@contextmanager
def required(extra: str) -> Iterator[None]:
    """Let the ModuleNotFoundError of a package that an extra installs say how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or PACKAGE).partition(".")[0]
        if missing == PACKAGE:
            raise
        why = f"{missing} is not installed; try: {install_command(extra)}"
        raise ModuleNotFoundError(why, name=error.name) from None


def requirements(declared: Iterable[str], extra: str) -> list[str]:
    """Of the requirements in the package's metadata those of an extra, without their markers."""
    found = (text.partition(";") for text in declared)
    return [name.strip() for name, _, marker in found if f"extra == '{extra}'" in marker.replace('"', "'")]


def _local_source(direct_url: str | None) -> Path | None:
    """The file or directory that the package was installed from (PEP 610); None for an index."""
    import json

    if direct_url is None:
        return None
    url = urlsplit(json.loads(direct_url)["url"])
    return Path(unquote(url.path)) if url.scheme == "file" else None
