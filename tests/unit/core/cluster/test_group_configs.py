"""Settings of groups as metadata records."""

from levada.core.cluster import metadata_records as rows
from levada.core.cluster.changes import GroupConfigsChanged
from levada.core.cluster.image import ClusterImage


def test_settings_of_groups_are_rows_of_the_store() -> None:
    change = GroupConfigsChanged("a/b ü%", {"consumer.session.timeout.ms": "50000"})
    key, value = rows.encode(change)
    assert key.count("/") == 3 and rows.decode(key, value) == change
    image = ClusterImage().apply([change])
    assert image.group_configs == {"a/b ü%": {"consumer.session.timeout.ms": "50000"}}
    gone = rows.decode(*rows.encode(GroupConfigsChanged("a/b ü%", {})))
    assert gone is not None
    assert image.apply([gone]).group_configs == {}
