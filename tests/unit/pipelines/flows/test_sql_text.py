"""The tables of a query, read from its text: too few are allowed, a wrong one is not."""

import pytest

from levada.pipelines.errors import PipelineError
from levada.pipelines.flows.sql_text import check_query, run_name, tables_of

QUERIES: list[tuple[str, set[str]]] = [
    ("SELECT * FROM orders", {"orders"}),
    ("select a from `my-orders` o where a > 1", {"my-orders"}),
    ("FROM orders |> WHERE a > 1 |> SELECT a, b", {"orders"}),
    ("SELECT * FROM a, b AS x, `c` WHERE f(a, b) = 1 GROUP BY a, d", {"a", "b", "c"}),
    ("SELECT * FROM a JOIN b ON a.id = b.id LEFT OUTER JOIN c USING (x, y)", {"a", "b", "c"}),
    ("SELECT * FROM a WHERE id IN (SELECT id FROM b)", {"a", "b"}),
    ("SELECT * FROM (SELECT shop FROM a) t, b", {"a", "b"}),
    ("WITH x AS (SELECT * FROM a), y(n) AS (SELECT 1 FROM b) SELECT * FROM x JOIN Y", {"a", "b"}),
    ("SELECT extract(YEAR FROM ts), trim(BOTH ' ' FROM s), substring(s FROM 2) FROM a", {"a"}),
    ("SELECT a IS NOT DISTINCT FROM b AS same, t.from FROM t", {"t"}),
    ("SELECT 'FROM x', \"JOIN y\" FROM a -- FROM z\n /* JOIN q */ WHERE s = 'it''s FROM r'", {"a"}),
    ("SELECT * FROM range(10)", set()),
    ("SELECT * FROM VALUES (1, 2), (3, 4) AS t(a, b)", set()),
    ("SELECT * FROM a LATERAL VIEW explode(xs) t AS x, y", {"a"}),
    ("SELECT * FROM a, LATERAL explode(xs) AS t(x)", {"a"}),
    ("SELECT * FROM parquet.`/tmp/x`", set()),
    ("SELECT sum(n) OVER w FROM a WINDOW w AS (ORDER BY ts)", {"a"}),
    ("SELECT a FROM orders UNION ALL SELECT b FROM payments", {"orders", "payments"}),
    ("SELECT 1 AS one", set()),
    ("SELECT `from`, `join` FROM a ORDER BY 1, 2", {"a"}),
    ("SELECT * FROM", set()),
    (")))", set()),
]


@pytest.mark.parametrize(("query", "expected"), QUERIES)
def test_the_tables_of_a_query(query: str, expected: set[str]) -> None:
    assert tables_of(query) == expected


@pytest.mark.parametrize(
    ("query", "to", "watermarks", "message"),
    [
        ("DROP TABLE x", "t", {}, "only queries can be run"),
        ("SELECT 1 AS one", "t", {}, "the query reads no topic; name one after FROM"),
        ("WITH a AS (SELECT 1) (SELECT 2)", None, {}, "the query reads no topic"),
        ("SELECT shop FRM orders", None, {}, "the query reads no topic"),
        ("SELECT * FROM orders", "orders", {}, "it would read its own output"),
        ("SELECT * FROM orders", "bad name", {}, "'bad name' cannot be the topic of the results"),
        ("SELECT * FROM orders", "t", {"payments.ts": "1 minute"}, "the query does not read payments"),
    ],
)
def test_what_is_refused(query: str, to: str | None, watermarks: dict[str, str], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        check_query(query, to, watermarks)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM range(10)",
        "SELECT * FROM VALUES (1, 2) AS t(a, b)",
        "WITH a AS (TABLE orders) (TABLE a)",
        r"SELECT r'\' FROM orders WHERE shop = ''",
        "SELECT 1 -- one\rFROM orders",
        "SELECT 1 AS n |> JOIN orders",
        "SELECT * FROM IDENTIFIER('orders')",
    ],
)
def test_spark_decides_whether_other_queries_read_a_topic(query: str) -> None:
    assert check_query(query, "totals", {}) <= {"orders"}


def test_a_run_has_the_name_of_its_results() -> None:
    assert run_name("large-orders") == "sql-large-orders"
    assert check_query("SELECT * FROM orders", "totals", {"orders.ts": "1 minute", "at": "1 minute"}) == {"orders"}
