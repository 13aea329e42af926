"""docs/reference agrees with the declarations; UPDATE_REFERENCE=1 writes it."""

import os
from collections.abc import Mapping
from pathlib import Path

from levada.config.broker import BROKER_SETTINGS
from levada.config.groups import GROUP_SETTINGS
from levada.config.settings import INT_MAX, LONG_MAX, Setting
from levada.config.topic import TOPIC_SETTINGS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "settings.md"
HEAD = """# Settings

Written from the declarations in `src/levada/config/`; do not edit. Names, types and defaults are those of Kafka 4.3,
of `zookeeper.*` those of Kafka 3.9, except for settings that begin with `levada.` and for those that suit a single node
on loopback: `node.id`, `listeners`, `log.dirs`, `socket.listen.backlog.size`, the replicas of internal topics, and
`segment.bytes`, which may be smaller (`tests/compat/test_settings.py` compares them). A topic or group setting without
a value takes it from the broker settings in the last column, the first that is set. A dynamic setting of the broker can
be changed while it runs.
"""


def default(setting: Setting) -> str:
    if setting.default in (LONG_MAX, INT_MAX):
        return "no limit"
    text = setting.render(setting.default)
    return f"`{text}`" if text else "none"


def bounds(setting: Setting) -> str:
    if setting.supported or setting.choices:
        return ", ".join(f"`{choice}`" for choice in setting.supported or setting.choices)
    low, high = setting.minimum, setting.maximum
    parts = [f"at least {low:,}" if low is not None else "", f"at most {high:,}" if high is not None else ""]
    return ", ".join(part for part in parts if part)


def table(settings: Mapping[str, Setting], last: str) -> list[str]:
    lines = [f"| name | type | default | values | meaning | {last} |", "|---|---|---|---|---|---|"]
    for setting in settings.values():
        if last == "dynamic":
            end = "yes" if setting.dynamic else ""
        else:
            end = ", ".join(f"`{synonym.name}`" for synonym in setting.synonyms)
        cells = [f"`{setting.name}`", setting.type.name, default(setting), bounds(setting), setting.doc, end]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def test_the_page_of_settings_is_what_is_declared() -> None:
    lines = [HEAD, "## Topics", "", *table(TOPIC_SETTINGS, "from the broker's"), "", "## Broker", ""]
    lines += [*table(BROKER_SETTINGS, "dynamic"), "", "## Groups", ""]
    text = "\n".join([*lines, *table(GROUP_SETTINGS, "from the broker's")]) + "\n"
    if os.environ.get("UPDATE_REFERENCE"):
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "run UPDATE_REFERENCE=1 pytest tests/packaging/test_reference.py"
