"""`levada completion`: shell scripts that complete commands, options and topic names."""

import click
from click.shell_completion import get_completion_class


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
