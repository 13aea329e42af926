"""A SPARK_HOME from which Spark's Python processes start quickly.

Spark gives its workers pyspark in a zip file, which Python compiles anew in each of them: 0.6 s of CPU for every
worker, source and sink of a query. On this machine the installed package is the same and compiled already. So the home
is a folder of links to what pip installed, with a folder of that name in the place of the zip file.
"""

import hashlib
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

ZIP = "pyspark.zip"


def quick_home() -> str | None:
    """What SPARK_HOME should be; None where the user has one, or there is no place for it."""
    spec = find_spec("pyspark")
    if "SPARK_HOME" in os.environ or spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    if not (package / "jars").is_dir() or not (package / "python" / "lib" / ZIP).is_file():
        return None  # not as pip installs it
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    home = Path(cache, "levada", f"spark-{hashlib.sha256(str(package).encode()).hexdigest()[:12]}")
    try:
        return str(home) if _is_made(home, package) or _make(home, package) else None
    except OSError:
        return None


def _is_made(home: Path, package: Path) -> bool:
    inner = home / "python" / "lib" / ZIP / "pyspark"
    return inner.is_symlink() and inner.resolve() == package.resolve() and (home / "jars").is_dir()


def _make(home: Path, package: Path) -> bool:
    """Beside its place, and moved there in one step; somebody else may be doing the same."""
    home.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f"{home.name}-", dir=home.parent))
    for entry in ("bin", "data", "jars", "licenses", "sbin"):
        if (package / entry).exists():
            (made / entry).symlink_to(package / entry)
    lib = made / "python" / "lib"
    (lib / ZIP).mkdir(parents=True)
    (lib / ZIP / "pyspark").symlink_to(package)
    for other in (package / "python" / "lib").iterdir():
        if other.name != ZIP:
            (lib / other.name).symlink_to(other)
    try:
        os.rename(made, home)
    except OSError:  # it is there meanwhile
        for path in sorted(made.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        made.rmdir()
    return _is_made(home, package)
