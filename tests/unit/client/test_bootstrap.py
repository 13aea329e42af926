"""The names that the package offers, and addresses of bootstrap servers."""

from typing import Any

import pytest

import levada as package
from levada import Client
from levada.client.client import parse_bootstrap


def test_the_package_offers_the_client_and_nothing_it_does_not_have() -> None:
    assert package.Client is Client
    with pytest.raises(AttributeError, match="no attribute 'Clint'"):
        _ = package.Clint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", ["localhost:9092"]),
        ("a:1, b:2,", ["a:1", "b:2"]),
        ("[::1]:9093,[fe80::1]", ["[::1]:9093", "[fe80::1]:9092"]),
        (["a:1", "b"], ["a:1", "b:9092"]),
    ],
)
def test_bootstrap_addresses(text: Any, expected: list[str]) -> None:
    assert [str(address) for address in parse_bootstrap(text)] == expected


@pytest.mark.parametrize("text", ["", ",", "a:b", "a:0", "a:70000", ":9092", []])
def test_what_is_no_bootstrap_address(text: Any) -> None:
    with pytest.raises(ValueError, match="host:port"):
        parse_bootstrap(text)
