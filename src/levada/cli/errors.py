"""Errors of commands: message, hint and exit code."""

from collections.abc import Iterable

import click

from levada.cli.output import wants_color
from levada.errors import ErrorCode, KafkaError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CANNOT_CONNECT = 3
EXIT_NOT_FOUND = 4
EXIT_DENIED = 5
EXIT_TIMEOUT = 6
EXIT_INTERRUPTED = 130

NOT_FOUND = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.RESOURCE_NOT_FOUND,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.BROKER_ID_NOT_REGISTERED,
    ErrorCode.GROUP_ID_NOT_FOUND,
}
DENIED = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.SASL_AUTHENTICATION_FAILED,
    ErrorCode.TOPIC_DELETION_DISABLED,
    ErrorCode.POLICY_VIOLATION,
}
HINTS = {
    ErrorCode.LEADER_NOT_AVAILABLE: "its log may be offline: see levada cluster health, and the broker's log",
    ErrorCode.KAFKA_STORAGE_ERROR: "its log is offline: see levada cluster health, and the broker's log",
    ErrorCode.TOPIC_ALREADY_EXISTS: "try: --if-not-exists to leave it unchanged",
    ErrorCode.TOPIC_DELETION_DISABLED: "try: delete.topic.enable=true in the broker's settings",
    ErrorCode.MESSAGE_TOO_LARGE: "try: levada config set topic TOPIC max.message.bytes=...",
    ErrorCode.NOT_ENOUGH_REPLICAS: "try: levada config set topic TOPIC min.insync.replicas=... (at most the replicas)",
    ErrorCode.INVALID_REPLICATION_FACTOR: "try: -r with at most the number of brokers, see levada cluster describe",
    ErrorCode.INVALID_PARTITIONS: "try: more partitions than the topic has, see levada topic describe",
    ErrorCode.OFFSET_OUT_OF_RANGE: "try: --from beginning, or `levada topic describe` for its offsets",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "try: a topic that is not internal, named by at most 249 of a-z A-Z 0-9 . _ -",
}


class CommandError(Exception):
    """Ends the command with a message on standard error and an exit code."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.hint = hint

    def show(self) -> None:
        click.echo(click.style("error: ", fg="red") + self.message, err=True, color=wants_color())
        if self.hint:
            click.echo(f"  {self.hint}", err=True)


def from_click(error: click.ClickException) -> CommandError:
    """A usage error of click in the form of other errors."""
    message = " ".join(error.format_message().removesuffix(".").split("\n\t"))
    message = message.replace(". Did you mean", "; did you mean").replace(". (Did you mean", " (did you mean")
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"try: {context.command_path} --help" if context else ""
    return CommandError(message[:1].lower() + message[1:], error.exit_code, hint)


def from_exception(error: Exception) -> CommandError | None:
    """A known error as CommandError; None for a bug, which shows its traceback."""
    from levada.client.errors import BrokerNotResponding, ConnectionFailed, RequestTimedOut

    if isinstance(error, CommandError):
        return error
    if isinstance(error, KafkaError):
        return for_topic(error, "TOPIC")
    if isinstance(error, BrokerNotResponding):
        return CommandError(str(error), EXIT_TIMEOUT, "try: --timeout with more seconds, or another broker with -b")
    if isinstance(error, ConnectionFailed):
        hint = "try: levada start, or name a broker with -b host:port"
        return CommandError(str(error), EXIT_CANNOT_CONNECT, hint)
    if isinstance(error, RequestTimedOut):
        return CommandError(str(error), EXIT_TIMEOUT, "try: --timeout with more seconds")
    if isinstance(error, UnicodeEncodeError):
        return CommandError(f"{error.object!r} is not UTF-8", EXIT_USAGE)
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return CommandError(f"{name}{error.strerror or error}")
    return None


def for_topic(error: KafkaError, topic: str) -> CommandError:
    """An error with a hint that names the topic."""
    message = error.detail or error.code.name.lower().replace("_", " ")
    hint = HINTS.get(error.code, "").replace(" TOPIC ", f" {topic} ")
    return CommandError(f"{message} ({error.code.name})", _exit_code(error.code), hint)


def _exit_code(code: ErrorCode) -> int:
    if code in NOT_FOUND:
        return EXIT_NOT_FOUND
    if code in DENIED:
        return EXIT_DENIED
    if code is ErrorCode.INVALID_CONFIG:
        return EXIT_USAGE
    return EXIT_TIMEOUT if code is ErrorCode.REQUEST_TIMED_OUT else EXIT_FAILED


def not_found(kind: str, name: str, known: Iterable[str], hint: str = "") -> CommandError:
    """The error for a missing topic, group and so on, with a similar name if there is one."""
    return CommandError(f"no such {kind}: {name}{did_you_mean(name, known)}", EXIT_NOT_FOUND, hint)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean orders?`, or an empty text if no name is similar."""
    from difflib import get_close_matches

    similar = get_close_matches(name, list(known), n=1)
    return f"; did you mean {similar[0]}?" if similar else ""
