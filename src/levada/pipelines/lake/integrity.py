"""Checks that a lake has the files of its commits, and that no commit of its files is missing."""

from collections.abc import Callable, Iterable, Mapping

from levada.pipelines.lake.commits import LakeState
from levada.pipelines.lake.files import Files

TOPIC_PREFIX = "topic="
NUMBER_DIGITS = 10  # at the begin of the name of a data file: its commit


def find_damage(files: Files, state: LakeState, staged: Callable[[Iterable[str]], Iterable[str]]) -> str | None:
    """What is wrong with the data files of a Parquet lake; None if they are those of its commits.

    `staged` gives the names in the staging area of files that are not moved yet.
    """
    topics = [name for name in files.names("") if name.startswith(TOPIC_PREFIX)]
    found = {f"{topic}/{file.path}": file.size for topic in topics for file in files.walk(topic)}
    unknown = [path for path in found if _commit_number(path) > state.number]
    if unknown:
        return (
            f"the lake {files.root} has files that none of its commits has, such as {min(unknown)}: commits are "
            "missing. Nothing was written; restore _levada/commits from a copy, or archive to another lake (--to "
            "another path)"
        )
    absent = [path for path in state.files if path not in found]
    for path, name in zip(absent, staged(absent), strict=True):
        size = files.size(name)
        found |= {path: size} if size is not None else {}
    wrong = {files.path(path): file.size for path, file in state.files.items() if found.get(path) != file.size}
    return damaged_file(files, wrong)


def damaged_file(files: Files, sizes: Mapping[str, int]) -> str | None:
    """What is wrong with the first file that has not its committed size; None if all have. `sizes` are by full path."""
    for path, size in sizes.items():
        found = files.size(path.removeprefix(files.path("")))
        if found != size:
            is_now = "is missing" if found is None else f"is damaged: it has {found} bytes instead of {size}"
            return f"{path} {is_now}. Restore it from a copy; no records were read or written"
    return None


def _commit_number(path: str) -> int:
    """The commit of a data file by its name; -1 for a file of somebody else."""
    number = path.rpartition("/")[2].partition("-")[0]
    return int(number) if number.isdecimal() and len(number) == NUMBER_DIGITS else -1
