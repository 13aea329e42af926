"""What a machine lacks skips a test, or fails it where everything is required."""

import pytest
from tests.support.downloads import Unavailable, must_be_had


@pytest.mark.parametrize(("required", "outcome"), [("", "Skipped"), ("1", "Failed")])
def test_a_missing_client_skips_or_fails(required: str, outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPAT_REQUIRE_ALL", required)
    with pytest.raises(BaseException, match=r"kafkajs cannot be had here: npm is not installed") as caught:
        must_be_had("kafkajs", Unavailable("npm is not installed"))
    assert type(caught.value).__name__ == outcome
