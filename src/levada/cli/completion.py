"""`levada completion`: shell scripts that complete commands, options and names; and the names of settings."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

if TYPE_CHECKING:
    from levada.config.settings import Setting

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      eval "$(levada completion bash)"     # in ~/.bashrc
      eval "$(levada completion zsh)"      # in ~/.zshrc, after compinit
      levada completion fish | source      # in ~/.config/fish/config.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    script = found(ctx.find_root().command, {}, "levada", "_LEVADA_COMPLETE").source()
    click.echo(script)


def complete_settings(resource: str | None = None, *, suffix: str = "", changes: bool = False) -> Completion:
    """Completes settings of a resource, by default that of the command line; with `changes` those that can change."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        kind = resource or ctx.params.get("resource")
        can_change = {name for name, one in _settings(kind).items() if one.dynamic or kind != "broker" or not changes}
        return matching((name + suffix for name in can_change), incomplete)

    return complete


def _settings(resource: str | None) -> "Mapping[str, Setting]":
    """The declared settings of a resource by name."""
    if resource == "topic":
        from levada.config.topic import TOPIC_SETTINGS

        return TOPIC_SETTINGS
    if resource == "broker":
        from levada.config.broker import BROKER_SETTINGS

        return BROKER_SETTINGS
    from levada.config.groups import GROUP_SETTINGS

    return GROUP_SETTINGS if resource == "group" else {}


def matching(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """The names that begin with the incomplete word."""
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
