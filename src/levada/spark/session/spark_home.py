"""Makes a SPARK_HOME from which Spark's Python processes start faster.

Spark's workers import pyspark from a zip file, which each of them compiles again: every worker, source and sink of a
query. The installed package has the same modules, compiled already. So this SPARK_HOME is a directory of links to the
installed package, with a directory under the name of the zip file.
"""

import hashlib
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

ZIP = "pyspark.zip"


def linked_spark_home() -> str | None:
    """The SPARK_HOME to use; None if the user has set one, or none can be made."""
    spec = find_spec("pyspark")
    if "SPARK_HOME" in os.environ or spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    if not (package / "jars").is_dir() or not (package / "python" / "lib" / ZIP).is_file():
        return None  # not installed by pip
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
    """Make it in a temporary directory and rename it; other processes may do the same."""
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
    except OSError:  # another process was faster
        for path in sorted(made.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        made.rmdir()
    return _is_made(home, package)
