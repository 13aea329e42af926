"""The simulated disk keeps what was synced, loses what was not, and replays by its seed."""

import errno
from collections.abc import Callable
from random import Random

import pytest

from levada.storage.disk import Disk, write_atomically
from levada.testing.sim_disk import Faults, SimCrash, SimDisk

SEEDS = range(200)


def disk(seed: int) -> SimDisk:
    made = SimDisk(Random(seed))
    made.mkdir("/d")
    made.fsync_dir("/")
    return made


def write(where: SimDisk, path: str, data: bytes, position: int = 0, sync: bool = False) -> None:
    fd = where.open(path, create=True)
    where.pwritev(fd, [data], position)
    if sync:
        where.fsync(fd)
    where.close(fd)


def outcomes(act: Callable[[SimDisk], None], path: str = "/d/a") -> set[bytes | None]:
    """What a power cut may leave of a file; None: not even its name."""
    found = set()
    for seed in SEEDS:
        one = disk(seed)
        act(one)
        one.cut_power()
        found.add(one.contents().get(path))
    return found


def test_it_is_a_disk() -> None:
    checked: Disk = disk(0)
    assert checked.exists("/d")


def test_what_was_synced_survives_and_what_was_not_may_be_lost_torn_or_whole() -> None:
    def synced(one: SimDisk) -> None:
        write(one, "/d/a", b"x" * 1_000, sync=True)
        one.fsync_dir("/d")

    def appended(one: SimDisk) -> None:
        synced(one)
        write(one, "/d/a", b"y" * 2_000, position=1_000)

    assert outcomes(synced) == {b"x" * 1_000}
    left = outcomes(appended)
    assert all(content is not None and content.startswith(b"x" * 1_000) for content in left)
    assert {b"x" * 1_000, b"x" * 1_000 + b"y" * 2_000} <= left
    assert any(content and 1_000 < len(content) < 3_000 for content in left)  # torn
    assert any(content and b"\0" * 400 in content for content in left)  # a hole


def test_a_name_survives_only_with_its_directory() -> None:
    def unnamed(one: SimDisk) -> None:
        write(one, "/d/a", b"x", sync=True)

    assert outcomes(unnamed) == {None, b"x"}


def test_an_atomic_replacement_leaves_the_old_or_the_new_content() -> None:
    def replace(one: SimDisk, durable: bool) -> None:
        write_atomically(one, "/d/a", b"old")
        write_atomically(one, "/d/a", b"new", durable)

    assert outcomes(lambda one: replace(one, True)) == {b"new"}
    assert {b"old", b"new", b""} <= outcomes(lambda one: replace(one, False))


def test_names_change_in_order() -> None:
    for seed in SEEDS:
        one = disk(seed)
        for name in "abc":
            write(one, f"/d/{name}", b"", sync=True)
        one.cut_power()
        assert "".join(path[-1] for path in one.contents()) in ("", "a", "ab", "abc")


def test_after_a_failed_fsync_the_next_one_succeeds_and_saves_nothing() -> None:
    lost = 0
    for seed in SEEDS:
        one = disk(seed)
        write(one, "/d/a", b"", sync=True)
        one.fsync_dir("/d")
        fd = one.open("/d/a")
        one.pwritev(fd, [b"x" * 10], 0)
        one.faults = Faults(fsync_error=1.0)
        with pytest.raises(OSError, match="fsync"):
            one.fsync(fd)
        one.faults = Faults()
        one.fsync(fd)
        assert one.pread(fd, 10, 0) == b"x" * 10  # the page cache still has it
        one.remount()
        lost += one.contents()["/d/a"] != b"x" * 10
    assert 0 < lost < len(SEEDS)


def test_a_killed_process_loses_nothing_that_was_written() -> None:
    one = disk(1)
    write(one, "/d/a", b"x" * 5_000)
    one.kill()
    assert one.contents() == {"/d/a": b"x" * 5_000}


def test_every_call_after_the_crash_fails_and_changes_nothing() -> None:
    one = disk(1)
    fd = one.open("/d/a", create=True)
    one.crash_at = one.steps + 1
    with pytest.raises(SimCrash):
        one.pwritev(fd, [b"x" * 100], 0)
    before = one.contents()
    calls: list[Callable[[], object]] = [
        lambda: one.pwritev(fd, [b"y" * 900], 0),
        lambda: one.unlink("/d/a"),
        lambda: one.rename("/d/a", "/d/b"),
        lambda: one.fsync(fd),
        lambda: one.open("/d/c", create=True),
    ]
    for call in calls:
        with pytest.raises(SimCrash):
            call()
    assert one.contents() == before


def test_a_full_disk_takes_what_fits() -> None:
    one = disk(1)
    one.capacity_bytes = 100
    fd = one.open("/d/a", create=True)
    assert one.pwritev(fd, [b"x" * 70, b"y" * 70], 0) == 100
    with pytest.raises(OSError) as caught:
        one.pwritev(fd, [b"z"], 100)
    assert caught.value.errno == errno.ENOSPC


def test_the_same_seed_gives_the_same_disk() -> None:
    def history(seed: int) -> tuple[str, dict[str, bytes]]:
        one = disk(seed)
        for number in range(20):
            write(one, f"/d/{number}", bytes([number]) * 3_000)
        one.cut_power()
        return one.digest, one.contents()

    assert history(7) == history(7)
    assert history(7) != history(8)
