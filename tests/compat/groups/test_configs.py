"""Kafka's own command line on settings of groups (R32)."""

from tests.compat.groups.test_tools import tool

CONFIGS = "kafka.admin.ConfigCommand"


def test_settings_of_groups(broker: str, name: str) -> None:
    entity = ("--entity-type", "groups", "--entity-name", name)
    said = tool(broker, CONFIGS, *entity, "--alter", "--add-config", "consumer.session.timeout.ms=50000")
    assert f"Completed updating config for group {name}." in said
    described = tool(broker, CONFIGS, *entity, "--describe")
    assert "consumer.session.timeout.ms=50000" in described
    assert "DEFAULT_CONFIG:group.consumer.session.timeout.ms=45000" in described
    assert name in tool(broker, CONFIGS, "--entity-type", "groups", "--describe")
    tool(broker, CONFIGS, *entity, "--alter", "--delete-config", "consumer.session.timeout.ms")
    assert "consumer.session.timeout.ms=45000" in tool(broker, CONFIGS, *entity, "--describe", "--all")
