"""Kafka's own command line on settings of groups."""

from tests.compat.tools import run_tool

CONFIGS = "kafka.admin.ConfigCommand"


def test_settings_of_groups(broker: str, name: str) -> None:
    def tool(*arguments: str) -> str:
        return run_tool(CONFIGS, *arguments, "--bootstrap-server", broker)

    entity = ("--entity-type", "groups", "--entity-name", name)
    printed = tool(*entity, "--alter", "--add-config", "consumer.session.timeout.ms=50000")
    assert f"Completed updating config for group {name}." in printed
    described = tool(*entity, "--describe")
    assert "consumer.session.timeout.ms=50000" in described
    assert "DEFAULT_CONFIG:group.consumer.session.timeout.ms=45000" in described
    assert name in tool("--entity-type", "groups", "--describe")
    tool(*entity, "--alter", "--delete-config", "consumer.session.timeout.ms")
    assert "consumer.session.timeout.ms=45000" in tool(*entity, "--describe", "--all")
