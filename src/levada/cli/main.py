"""The command `levada`: imports only the command in use, and turns errors into messages and exit codes."""

import sys
from importlib import import_module
from typing import Any

import click

from levada.cli.errors import (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    CommandError,
    did_you_mean,
    from_click,
    from_exception,
)
from levada.cli.output import discard_output
from levada.cli.records.kcat import answer

# Each command: its module, and a description.
COMMANDS = {
    "start": ("levada.cli.start", "Start a broker."),
    "topic": ("levada.cli.topic", "List, create, describe, alter, trim and delete topics."),
    "produce": ("levada.cli.records.produce", "Send records from standard input or files."),
    "consume": ("levada.cli.records.consume", "Print the records of topics."),
    "group": (
        "levada.cli.group",
        "List and describe consumer groups and their lag; reset and delete them.",
    ),
    "txn": ("levada.cli.txn", "List and describe transactions; abort or commit hanging and prepared ones."),
    "pipeline": (
        "levada.cli.pipeline.commands",
        "Run pipelines on Spark: topics to lakes and back, topics to topics.",
    ),
    "config": ("levada.cli.config", "Show and change the settings of topics, brokers and groups."),
    "log": ("levada.cli.log.commands", "Check and repair the data directories of a stopped broker."),
    "cluster": ("levada.cli.cluster", "Describe the cluster, its health and its log dirs."),
    "completion": ("levada.cli.completion", "Print the completion script of a shell."),
}


class Commands(click.Group):
    """The commands; a command is imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[name][0]), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            hint = "try: levada --help"
            raise CommandError(f"no such command: {args[0]}{did_you_mean(args[0], COMMANDS)}", EXIT_USAGE, hint)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:  # click would exit with 1; `| head` has all that it needs
            discard_output()
            return 0

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="levada", message="levada %(version)s")
def levada() -> None:
    """A message broker for Kafka's protocol, and its tools.

    \b
    Examples:
      levada start --data ./data
      levada topic create orders -p 3
      echo hello | levada produce orders
      levada consume orders -e

    Tools connect to the brokers of -b, otherwise to LEVADA_BOOTSTRAP, otherwise to 127.0.0.1:9092.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit with its code."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run a command; 0 ok, 1 failed, 2 usage, 3 cannot connect, 4 not found, 5 denied, 6 timeout."""
    try:
        code = levada.main(arguments, prog_name="levada", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.NoSuchOption as error:
        failure = answer(error, sys.argv[1:] if arguments is None else arguments) or from_click(error)
        failure.show()
        return failure.exit_code
    except click.ClickException as error:
        failure = from_click(error)
        failure.show()
        return failure.exit_code
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except Exception as error:
        explained = from_exception(error)
        if explained is None:
            raise
        explained.show()
        return explained.exit_code
