"""What the text of an SQL query shows without Spark: that it is a query, and the tables that it certainly reads.

It is no parser. A name that may be something else than a topic (of a file, a function, a common table expression) is
left to Spark, which reads the query afterwards in any case.
"""

import re
from collections.abc import Mapping, Sequence

from levada.core.cluster import topic_names
from levada.errors import KafkaError
from levada.pipelines.errors import PipelineError

SELECT = re.compile(r"\s*(?:--[^\n]*\n\s*|/\*.*?\*/\s*)*(?:SELECT|WITH|FROM|\()", re.IGNORECASE | re.DOTALL)
_TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?\*/                     # comments
    |'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*" # strings
    |(?P<quoted>`(?:[^`]|``)+`)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign>\|>|[(),.;])
    |\S""",
    re.VERBOSE | re.DOTALL,
)
# Without one of these words, be it in a string or a comment, a query reads no table.
_READS = re.compile("FROM|JOIN|TABLE", re.IGNORECASE)
# A subquery or a list of tables begins here; other parentheses hold expressions, with a FROM of their own kind.
_QUERY_STARTS = {"SELECT", "FROM", "WITH", "TABLE", "VALUES", "("}
# Words after which a comma separates something else than tables.
_CLAUSES = {
    "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "WINDOW", "UNION", "EXCEPT", "MINUS", "INTERSECT", "LATERAL",
    "SELECT", "DISTRIBUTE", "SORT", "CLUSTER", "QUALIFY", "PIVOT", "UNPIVOT", "VALUES", "OFFSET", "|>",
}  # fmt: skip
_NO_TABLES = {"LATERAL", "VALUES", "TABLE", "("}


def check_query(query: str, to: str | None, watermarks: Mapping[str, str]) -> set[str]:
    """Return the tables of a query; PipelineError if it cannot be run, whatever the tables hold."""
    if not SELECT.match(query):
        raise PipelineError(f"only queries can be run (SELECT ..., WITH ... SELECT ...), this is: {query[:60]}")
    if not _READS.search(query):
        raise reads_no_topic()
    tables = tables_of(query)
    if to is not None:
        _check_result(to, tables)
    for name in watermarks:
        table = name.rpartition(".")[0]
        if table and table not in query:
            raise PipelineError(f"watermark {name}: the query does not read {table}")
    return tables


def run_name(to: str) -> str:
    """The name of a run by the topic of its results, so that each query has its own."""
    return f"sql-{to}"


def _check_result(to: str, tables: set[str]) -> None:
    try:
        topic_names.check(to)
    except KafkaError as error:
        raise PipelineError(f"{to!r} cannot be the topic of the results: {error.detail}") from None
    if to in tables:
        raise reads_its_results(to)


def reads_its_results(to: str) -> PipelineError:
    """The error of a query that reads the topic of its results."""
    return PipelineError(f"the query reads {to}, the topic of its results: it would read its own output")


def reads_no_topic() -> PipelineError:
    """The error of a query without a topic."""
    return PipelineError("the query reads no topic; name one after FROM")


def tables_of(query: str) -> set[str]:
    """The tables after FROM and JOIN that are certainly neither functions nor common table expressions."""
    tokens = [
        match["quoted"] or match["word"] or match["sign"] or "?"
        for match in _TOKEN.finditer(query)
        if not match[0].startswith(("--", "/*"))
    ]
    words = [token.upper() for token in tokens]
    found: set[str] = set()
    in_tables = [False]  # by depth of parentheses: whether a comma separates tables
    is_query = [True]  # by depth: whether FROM begins a list of tables
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else ""
        if word == "(":
            is_query.append(following in _QUERY_STARTS)
            in_tables.append(False)
        elif word == ")" and len(is_query) > 1:
            is_query.pop()
            in_tables.pop()
        elif word in _CLAUSES:
            in_tables[-1] = False
        elif word == "FROM" and is_query[-1] and words[index - 1 : index] not in (["DISTINCT"], ["."]):
            in_tables[-1] = True
            found |= _table(tokens, index + 1)
        elif word == "JOIN" or (word == "," and in_tables[-1]):
            found |= _table(tokens, index + 1)
    return {name for name in found if name.lower() not in _common_tables(tokens)}


def _table(tokens: Sequence[str], index: int) -> set[str]:
    """The name at this place; none if it is a function, has parts, or is no name."""
    name, after = tokens[index : index + 1], tokens[index + 1 : index + 2]
    if not name or after in (["("], ["."]) or name[0].upper() in _NO_TABLES:
        return set()
    if name[0].startswith("`"):
        return {name[0][1:-1].replace("``", "`")}
    return {name[0]} if name[0].isidentifier() else set()


def _common_tables(tokens: Sequence[str]) -> set[str]:
    """The names before `AS (`, or before a list of columns and `AS (`, in lower case."""
    names: set[str] = set()
    for index, token in enumerate(tokens):
        if token.upper() != "AS" or tokens[index + 1 : index + 2] != ["("] or not index:
            continue
        before = index - 1
        if tokens[before] == ")":
            while before > 0 and tokens[before] != "(":
                before -= 1
            before -= 1
        names.add(tokens[before].strip("`").lower())
    return names
