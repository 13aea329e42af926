"""Patterns of names: RE2's syntax, whole names, and limits."""

import itertools
import re
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levada.core.patterns import MATCHING_S_MAX, MATCHING_S_PER_NAME, Pattern
from levada.errors import ErrorCode, KafkaError


@pytest.mark.parametrize(
    ("pattern", "names", "others"),
    [
        ("orders", ["orders"], ["orders2", "my-orders", "order"]),
        ("^orders-.*$", ["orders-", "orders-eu.1"], ["my-orders-1", "orders"]),
        ("a|b|", ["a", "b", ""], ["ab", "c"]),
        ("(?:eu|us)-[a-z]+", ["eu-orders", "us-x"], ["eu-", "eu-Orders", "de-a"]),
        ("t[0-9]{2,3}", ["t12", "t123"], ["t1", "t1234"]),
        ("t[0-9]{2}", ["t12"], ["t1", "t123"]),
        ("t[0-9]{2,}", ["t12", "t12345"], ["t1"]),
        ("a{,2}", [], ["a", "aa", ""]),
        ("x+?y*?z??", ["x", "xxyyz"], ["y", "xzz"]),
        ("(?i)orders", ["Orders", "ORDERS"], ["order"]),
        ("a(?i)b|c", ["aB", "ab", "C"], ["Ab"]),
        ("(?i:a)b", ["Ab", "ab"], ["aB"]),
        ("((?i)a)b", ["Ab"], ["aB"]),
        ("(?i)\u212aafka[\u017f-\u0180]", ["kafkas", "KAFKAS"], ["afkas"]),
        (r"\d\w\D", ["1a-", "1_a"], ["a1-", "1-a"]),
        (r"[\w.]+", ["a.b_c"], ["a-b"]),
        (r"[^a-c]", ["d", "-", "."], ["a", "c"]),
        ("[]a]", ["a"], ["b"]),
        ("[a-]+", ["a-a"], ["b"]),
        ("[[:alpha:]_]+[[:^digit:]]", ["ab_", "x-"], ["a1"]),
        (r"\p{Lu}\pL\P{L}", ["Ab1", "AA-"], ["ab1", "Ab_c"]),
        (r"\p{^Nd}\p{Latin}\p{Nd}", ["ab1"], ["1b1"]),
        (r"(?i)\p{Lu}[[:upper:]]\PL", ["aB1", "ab-"], ["a1b", "aab"]),
        (r"\Qa.b\E.", ["a.bx"], ["aXbx"]),
        (r"\Qa.b", ["a.b"], ["axb"]),
        (r"\x61\x{62}\141\.", ["aba."], ["abab"]),
        (r"\Aab\z", ["ab"], ["abc"]),
        (r"\bfoo\b.*", ["foo", "foo-bar"], ["foobar", "foo_"]),
        (r"a\Bb", ["ab"], ["a-b"]),
        (r"(?P<who>a)(?<what>b)", ["ab"], ["a"]),
        ("(?s-m:a.)", ["ab"], ["a"]),
        ("()*", [""], ["a"]),
        ("(a*)*b", ["aaab", "b"], ["aaa"]),
        ("a$b", [], ["ab", "a"]),
        ("\u00e9|a", ["a", "\u00e9"], ["e"]),
        (r"\p{Greek}+|\p{Any}", ["\u03b1\u03b2", "x"], ["ab"]),
        ("[^a]", ["b", "\u00e9", "\n"], ["a"]),
        (".", ["a", "\u00e9"], ["\n"]),
        ("(?s).", ["a", "\n"], ["ab"]),
        ("(?m)a$\n^b", ["a\nb"], ["ab"]),
        ("a$\nb", [], ["a\nb"]),
        ("(?i)[\u00c0-\u00de]", ["\u00e9", "\u00c9"], ["e"]),
        (r"\S\s\W", ["a :"], ["a  a"]),
    ],
)
def test_patterns_mean_what_re2_says(pattern: str, names: list[str], others: list[str]) -> None:
    compiled = Pattern(pattern)
    assert [name for name in names if not compiled.matches(name)] == []
    assert [name for name in others if compiled.matches(name)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)", "(a", "[a", "[]", "[b-a]", "[a-\\d]", "*", "a**", "a|*", "(*)", "^*+", "a{2}{3}", "a{1001}",
        "a{3,2}", "a{2,1001}", r"\1", r"(a)\1", "(?=a)", "(?!a)", "(?<=a)b", "(?>a)", "(?x)a", "(?P<>a)", "(?P<a",
        r"\k<a>", r"\p{Nope}", r"\p{L", r"\x{110000}", r"\xzz", r"\x", "a\\", "[[:nope:]]", r"\Z", r"\G", r"\h", "(?",
        "(?i", "(?--i)",
    ],
)  # fmt: skip
def test_what_re2_does_not_know_is_refused(pattern: str) -> None:
    with pytest.raises(KafkaError) as caught:
        Pattern(pattern)
    assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize(
    "pattern",
    [
        "a" * 40_000,
        "((a{1000}){1000}){1000}",
        "(x{100}){1000}",
        "((((((((((a{10}){10}){10}){10}){10}){10}){10}){10}){10}){10})",
        "(?:(?:(?:){1000}){1000}){1000}",
        r"\pL" * 33,
        "a{1000}" * 11,
        "a{1,1000}" * 6,
        "(?:abcdefghijkl){1000}",
        "[^a]" * 2_000 + "(?i)" + "k" * 100,
    ],
)
def test_patterns_that_take_long_to_compile_or_to_match_are_refused(pattern: str) -> None:
    with pytest.raises(KafkaError) as caught:
        Pattern(pattern)
    assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(a*)*b", "(a|a)*b", "(a|aa)+b", "(.*a){12}", "(a?){200}a{200}", "a{1,1000}a{1,1000}a{1,1000}b"],
)
def test_patterns_that_take_other_engines_exponential_time(pattern: str) -> None:
    assert not Pattern(pattern).matches("a" * 248 + "c")


def test_matching_has_a_limit_of_cpu_time() -> None:
    spent = itertools.count(0, MATCHING_S_MAX / 2)
    names = [f"t{number}" for number in range(10)]
    with pytest.raises(KafkaError) as caught:
        Pattern("t.*").matching(names, lambda: float(next(spent)))
    assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert next(spent) < 3 * MATCHING_S_MAX, "it stops at the limit"
    assert Pattern("t[0-4]").matching(names, float) == set(names[:5])


def test_many_names_have_more_time() -> None:
    names = [f"t{number}" for number in range(100_000)]
    spent = itertools.count(0, MATCHING_S_PER_NAME)
    assert len(Pattern("t.*").matching(names, lambda: float(next(spent)))) == len(names)


plain = st.sampled_from(["a", "b", "c", "_", "-", "1", r"\.", ".", "[ab]", "[^a]", "[a-c1]", r"\d", r"\w", r"\W"])
places = st.sampled_from(["^", "$", r"\b", r"\B"])
patterns = st.recursive(
    plain | places,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: f"(?:{'|'.join(options)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(patterns, st.lists(st.text("abc_-1.", min_size=1, max_size=7), max_size=20))
@settings(max_examples=500)
def test_patterns_match_as_pythons_do(pattern: str, names: list[str]) -> None:
    """Where the two syntaxes agree; Python's may take as long as it likes."""
    compiled, oracle = Pattern(pattern), re.compile(pattern, re.ASCII)
    for name in names:
        assert compiled.matches(name) == (oracle.fullmatch(name) is not None), name


@given(st.text(st.characters() | st.sampled_from("()[]{}|*+?\\^$.-aQEpx0<>:,"), max_size=30), st.text())
def test_any_text_is_a_pattern_or_is_refused(pattern: str, name: str) -> None:
    with suppress(KafkaError):
        Pattern(pattern).matches(name)
