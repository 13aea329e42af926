"""JSON as typed columns: both parsers agree, and one malformed value does not affect others."""

import json
import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levada.spark.formats.json import JsonDecoder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KIND = pa.struct(
    [
        ("user", pa.string()),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("ok", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("at", pa.struct([("lat", pa.float32())])),
    ]
)
GOOD = {"user": "é", "n": 5, "x": 1.5, "ok": True, "tags": ["a", None], "at": {"lat": 2.5}}
NOTHING: dict[str, Any] = dict.fromkeys(GOOD)


def decode(*values: bytes | None, kind: Any = KIND) -> tuple[list[Any], list[bool]]:
    structs, bad = JsonDecoder(kind).decode(pa.array(values, pa.binary()))
    assert structs.type == kind
    structs.validate(full=True)
    return structs.to_pylist(), bad.to_pylist()


def test_values_become_structs() -> None:
    found = decode(json.dumps(GOOD).encode(), b'{"n": 1, "unknown": [1, {}]}', None, b"null")
    assert found == ([GOOD, NOTHING | {"n": 1}, None, None], [False] * 4)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"  ",
        b"{",
        b"5",
        b"[]",
        b'"text"',
        b'{"n": "1"}',
        b'{"n": 1.5}',
        b'{"n": 3000000000}',
        b'{"n": true}',
        b'{"user": 1}',
        b'{"x": "1"}',
        b'{"ok": 0}',
        b'{"tags": "a"}',
        b'{"tags": [1]}',
        b'{"at": 1}',
        b'{"n": 1}{"n": 2}',
        b'{"n": 1}\n{"n": 2}',
        b'{"n": 1}, "v": {"n": 2}',
        b'{"n": 1}}\n{"i": 1, "v": {}',
        b'{"n": 1}, "z": 2',
        b'{"n": 1, "n": 2}',
        b'{"user": "\\ud800"}',
        b'{"user": "\xff"}',
        b"\xff\xfe",
        b"\x00",
        b"[" * 100_000,
    ],
)
def test_what_is_not_of_the_type_is_reported_and_its_neighbours_are_well(bad: bytes) -> None:
    good = json.dumps(GOOD).encode()
    assert decode(good, bad, b'{"n": 2}') == ([GOOD, None, NOTHING | {"n": 2}], [False, True, False])


def test_times_dates_and_decimals_are_texts_in_json() -> None:
    kind = pa.struct(
        [
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("price", pa.decimal128(8, 2)),
            ("counts", pa.map_(pa.string(), pa.int64())),
            ("raw", pa.binary()),
        ]
    )
    value = b'{"at":"2026-11-15T12:00:00Z","day":"2026-11-15","price":12.5,"counts":{"a":1},"raw":"xy"}'
    wrong = [
        b'{"at": 5}',
        b'{"at": "0001-01-01T00:00:00+14:00"}',
        b'{"counts": {"\\ud800": 1}}',
        b'{"price": "x"}',
    ]
    (found, *rest), bad = decode(value, *wrong, kind=kind)
    assert bad == [False] + [True] * 4 and rest == [None] * 4
    assert found["at"].isoformat() == "2026-11-15T12:00:00+00:00"
    assert (str(found["day"]), str(found["price"])) == ("2026-11-15", "12.50")
    assert (found["counts"], found["raw"]) == ([("a", 1)], b"xy")


@pytest.mark.parametrize(
    ("literal", "price"),
    [
        ("12345678901234567.89", "12345678901234567.89"),
        ("1.005", "1.01"),
        ("2.675", "2.68"),
        ("-0.005", "-0.01"),
        ("0.125e1", "1.25"),
        ("99999999999999999999.994999", "99999999999999999999.99"),
        ('"1.005"', "1.01"),
        ("1e2", "100.00"),
        ("1e-999999999", "0.00"),
    ],
)
def test_decimals_are_exact_and_rounded_half_up(literal: str, price: str) -> None:
    found, bad = decode(b'{"price": %s}' % literal.encode(), kind=pa.struct([("price", pa.decimal128(22, 2))]))
    assert (str(found[0]["price"]), bad) == (price, [False])


@pytest.mark.parametrize("literal", ["1e30", "NaN", '"NaN"', '"1_0"', '" 1"', "1e999999999", "true"])
def test_what_no_decimal_can_hold_is_malformed(literal: str) -> None:
    assert decode(b'{"price": %s}' % literal.encode(), kind=pa.struct([("price", pa.decimal128(22, 2))]))[1] == [True]


def test_decimals_are_those_of_sparks_from_json(spark: "SparkSession") -> None:
    from pyspark.sql.functions import from_json

    literals = ["1.005", "-1.005", "0.994999999999999999", "12345678901234567.895", "7", "1e3", "0.1e-1", "2.5E+2"]
    values = [f'{{"price": {literal}}}' for literal in literals]
    rows = spark.createDataFrame([(value,) for value in values], "value string")
    theirs = [row[0] for row in rows.select(from_json("value", "price decimal(22, 2)").price).collect()]
    ours, _ = decode(*map(str.encode, values), kind=pa.struct([("price", pa.decimal128(22, 2))]))
    assert [one["price"] for one in ours] == theirs


def test_a_field_that_must_be_there_is_missed() -> None:
    kind = pa.struct([pa.field("n", pa.int64(), nullable=False)])
    assert decode(b'{"n": 1}', b"{}", b'{"n": null}', kind=kind)[1] == [False, True, True]


def test_a_bad_value_among_many() -> None:
    values = [b'{"n": %d}' % number for number in range(10_000)]
    values[4_321] = b"oops"
    found, bad = decode(*values)
    assert bad.index(True) == 4_321 and sum(bad) == 1
    assert [one["n"] for one in found if one] == [number for number in range(10_000) if number != 4_321]


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["user", "n", "x", "ok", "tags", "at", "lat", "z"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.none() | anything.map(lambda found: json.dumps(found).encode()) | st.binary(max_size=8), max_size=6))
def test_a_values_fate_does_not_depend_on_its_neighbours(values: list[bytes | None]) -> None:
    together, bad = decode(*values)
    alone = [decode(value) for value in values]
    assert bad == [one[1][0] for one in alone]
    assert repr(together) == repr([one[0][0] for one in alone])
    spoiled, spoiled_bad = decode(*values, b"spoils all of them")
    assert repr(spoiled[:-1]) == repr(together) and spoiled_bad == [*bad, True]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (b'{"n": 1, "z": %s}' % (b"[" * 1_500 + b"]" * 1_500), {"n": 1}),
        (b' {"n": 1, "z": %s}' % (b'{"z":' * 1_500 + b"{}" + b"}" * 1_500), {"n": 1}),
        (b'{"n": 1, "z": -NaN}', {"n": 1}),
        (b'{"n": 1, "z": %s}' % (b"9" * 5_000), {"n": 1}),
        (b'{"x": %s}' % (b"9" * 400), {"x": math.inf}),
        (b'{"x": -%s}' % (b"9" * 309), {"x": -math.inf}),
        (b'{"x": -1e999}', {"x": -math.inf}),
        (b'{"n": -0, "x": -0, "at": {"lat": -0}}', {"n": 0, "x": -0.0, "at": {"lat": -0.0}}),
        (b'{"n": %s}' % (b"9" * 400), None),
    ],
)
def test_what_the_two_ways_could_see_differently(value: bytes, wanted: dict[str, Any] | None) -> None:
    one = None if wanted is None else NOTHING | wanted
    assert repr(decode(value)) == repr(([one], [wanted is None]))
    assert repr(decode(value, b"oops")) == repr(([one, None], [wanted is None, True]))


def test_an_object_of_very_many_names() -> None:
    """Its cost grows with them, not with their square."""
    names = ",".join(f'"k{number % 99_000}": 0' for number in range(100_000))
    found = decode(b"oops", f'{{"n": 7, {names}}}'.encode())
    assert found == ([None, NOTHING | {"n": 7}], [True, False])
