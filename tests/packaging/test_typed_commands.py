"""Every `levada ...` command in docs and help exists, with its options."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from levada.cli.main import levada

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = re.compile(r"^```console\n(.*?)^```$|((?:^    .*\n)+)", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\s*(?:\$ )?levada [a-z].*$", re.MULTILINE)
GRAMMAR = re.compile(r"\| \w+ \|")  # list | create | delete
ENDS = {"|", "||", "&&", ";", ">", "<", "..."}  # of a command, in a shell


def typed(text: str) -> Iterator[list[str]]:
    """The words of each command; one may go on in the next lines, in open quotes or after a backslash."""
    for found in COMMAND.finditer(text):
        if GRAMMAR.search(found[0]):
            continue
        lines = text[found.start() :].strip().removeprefix("$ ").splitlines()
        for count in range(1, len(lines) + 1):
            if lines[count - 1].endswith("\\"):
                continue
            try:
                words = shlex.split("\n".join(lines[:count]).replace("\\\n", " "), comments=True)
                break
            except ValueError:  # a quote is open
                continue
        end = next((place for place, word in enumerate(words) if word in ENDS), len(words))
        yield words[1:end]


def commands(group: click.Group, context: click.Context) -> Iterator[click.Command]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield command
        if isinstance(command, click.Group):
            yield from commands(command, click.Context(command, context))


def check(words: list[str]) -> None:
    """Let click read a command line to its end, and do nothing."""
    command: click.Command = levada
    context = levada.make_context("levada", list(words))
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert name is not None and found is not None
        try:
            command, context = found, found.make_context(name, rest, parent=context)
        except click.BadParameter as error:
            if "does not exist" not in error.message:  # a file of the user's
                raise
            return


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_shows_can_be_typed(page: Path) -> None:
    text = "\n".join("".join(parts) for parts in CODE.findall(page.read_text()))
    for words in typed(text):
        if not any(word.startswith("[") or "|" in word for word in words):  # a command, and not its grammar
            check(words)


def test_what_the_help_shows_can_be_typed() -> None:
    shown = [words for one in commands(levada, click.Context(levada)) for words in typed(one.help or "")]
    assert len(shown) > 60
    for words in shown:
        check(words)
