"""Style rules: sizes, docstrings, names, purity, no postponed work."""

import ast
import re
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
SOURCE = sorted((ROOT / "src").rglob("*.py"))
APART = sorted([*(ROOT / "bench").rglob("*.py"), *(ROOT / "examples").rglob("*.py")])
TESTS = sorted((ROOT / "tests").rglob("*.py"))

MODULE_LINES_SOFT = 400  # more is a warning: a module ends where a concept ends
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 40
PACKAGE_MODULES_MAX = 14
VAGUE_NAMES = re.compile(r"(?i:manager|helper)|Utils?\b|_utils?\b|^utils?$|Impl\b|_impl\b")
COINAGES = {
    "cramped", "crowd", "crowded", "endure", "hear", "heard", "hears", "judge", "judging", "lookout", "misplaced",
    "misshapen", "overdrawn", "owed", "parley", "patience", "promise", "promised", "promises", "refusal", "refusals",
    "relief", "said", "silence", "told", "turn", "turns", "twin", "untimely", "usual",
}  # fmt: skip
POSTPONED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
IMPURE = {
    "asyncio", "io", "multiprocessing", "os", "pathlib", "random", "secrets", "select", "selectors", "shutil",
    "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "time", "uvloop",
}  # fmt: skip


BLOCKING = re.compile(r"\.(poll|readline|recv)\(")
SKIPS_BY = "tests/support/downloads.py"  # `must_be_had` fails instead where COMPAT_REQUIRE_ALL is set
# Tests of what only one platform, or only a broker of their own, has.
SKIP_MARKS = {
    ("tests/compat/own_broker.py", "needs a broker of its own, not that of COMPAT_BOOTSTRAP"),
    ("tests/component/broker/compaction/test_cleaner.py", "the kernel's help is Linux's"),
    ("tests/component/client/test_client.py", "uvloop is for CPython on Linux and macOS"),
    ("tests/component/net/test_listener.py", "RssAnon is Linux's"),
    ("tests/component/net/test_listener.py", "only Linux tells"),
    ("tests/component/test_crash.py", "looks into /proc"),
    ("tests/spark/session/test_workers.py", "glibc's allocator"),
    ("tests/spark/session/test_workers.py", "others acknowledge in other ways"),
}


class LongModule(UserWarning):
    """A module is longer than most need to be."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.filterwarnings("default::tests.packaging.test_tidy.LongModule")
@pytest.mark.parametrize("path", [*SOURCE, *APART], ids=name_of)
def test_a_module_is_short_and_says_why_it_exists(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    lines = text.count("\n")
    assert lines <= MODULE_LINES_MAX, f"{lines} lines"
    if lines > MODULE_LINES_SOFT:
        warnings.warn(LongModule(f"{name_of(path)} has {lines} lines"), stacklevel=1)
    assert ast.get_docstring(tree), "no module docstring"


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From `def` to the end, without the docstring: the help of a command is prose."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or 0) - first.lineno + 1
    return lines


def test_packages_are_small() -> None:
    sizes = Counter(name_of(path.parent) for path in SOURCE if path.name != "__init__.py")
    assert {name: size for name, size in sizes.items() if size > PACKAGE_MODULES_MAX} == {}


@pytest.mark.parametrize("path", SOURCE, ids=name_of)
def test_functions_are_short(path: Path) -> None:
    lengths = {node.name: code_lines(node) for node in functions(ast.parse(path.read_text()))}
    assert {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES_MAX} == {}


@pytest.mark.parametrize("path", SOURCE, ids=name_of)
def test_names_say_what_a_thing_is(path: Path) -> None:
    tree = ast.parse(path.read_text())
    classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    names = [path.stem, *classes, *(node.name for node in functions(tree))]
    assert [name for name in names if VAGUE_NAMES.search(name)] == []


def identifiers(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                yield name
            case ast.Name(name) | ast.Attribute(attr=name) | ast.arg(name) | ast.alias(asname=str(name)):
                yield name
            case ast.keyword(str(name)):
                yield name


@pytest.mark.parametrize("path", [*SOURCE, *APART, *TESTS], ids=name_of)
def test_identifiers_are_words_of_the_field(path: Path) -> None:
    """Kafka, asyncio, SQL or Spark have a word for it; docs/architecture.md has a glossary."""
    names = {path.stem, *identifiers(ast.parse(path.read_text()))}
    words = {name: {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)} for name in names}
    assert {name for name in names if words[name] & COINAGES} == set()


@pytest.mark.parametrize("path", [*SOURCE, *APART, *TESTS], ids=name_of)
def test_no_work_is_postponed_in_a_comment(path: Path) -> None:
    if path != Path(__file__):
        assert POSTPONED.findall(path.read_text()) == []


@pytest.mark.parametrize(
    "path", [path for path in SOURCE if {"wire", "core"} & set(path.relative_to(ROOT).parts)], ids=name_of
)
def test_wire_and_core_are_pure(path: Path) -> None:
    assert IMPURE & set(imports(ast.parse(path.read_text()))) == set()


@pytest.mark.parametrize("path", [path for path in TESTS if path.is_relative_to(ROOT / "tests" / "unit")], ids=name_of)
def test_unit_tests_need_no_sockets_files_and_processes(path: Path) -> None:
    text = path.read_text()
    assert {"multiprocessing", "socketserver", "sqlite3", "subprocess", "tempfile"} & set(
        imports(ast.parse(text))
    ) == set()
    assert not re.findall(r"tmp_path|BrokerThread|EmbeddedBroker|create_connection", text)


def test_tests_skip_nothing_that_is_not_listed_and_wait_with_a_deadline() -> None:
    """What is missing on a machine must be able to fail the run, and no test may pass by catching a skip.

    A loop that does nothing but ask keeps a core from the broker, and hangs where the answer does not come.
    """
    skips, marks, busy = set(), set(), set()
    for path in TESTS:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(attr="importorskip" | "skip" | "xfail"):
                    skips.add(name_of(path))
                case ast.Call(
                    func=ast.Attribute(attr="skipif"), keywords=[ast.keyword("reason", ast.Constant(reason))]
                ):
                    marks.add((name_of(path), reason))
                case ast.While(test=test, body=[ast.Pass()]) if not BLOCKING.search(ast.unparse(test)):
                    busy.add(f"{name_of(path)}:{node.lineno}")
    assert skips == {SKIPS_BY}, "use `must_be_had`"
    assert marks == SKIP_MARKS
    assert busy == set(), "use `until` of tests/support/waiting.py"


@pytest.mark.parametrize("path", [path for path in SOURCE if path.name == "__init__.py"], ids=name_of)
def test_packages_hold_no_code_of_their_own(path: Path) -> None:
    """Only a docstring, names from below, and the loading of them on first use."""
    tree = ast.parse(path.read_text())
    assert {node.name for node in functions(tree)} <= {"__getattr__", "__dir__"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


@pytest.mark.parametrize("name", ["core", "dev"])
def test_the_locks_hold_what_the_project_asks_for(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + (extras["spark"] + extras["dev"] if name == "dev" else [])
    lock = (ROOT / "requirements" / f"{name}.txt").read_text()
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^ \\]+)", lock, re.MULTILINE))
    for requirement in map(Requirement, wanted):
        if requirement.name == project["name"]:
            continue  # its own extras
        assert requirement.specifier.contains(locked[requirement.name], prereleases=True), "run `make lock`"
