"""Tables of reports as text and as HTML."""

from xml.etree import ElementTree

from levada.pipelines.reports.table import Table

TABLE = Table("Top <2> pages", ("page", "views", "mean", "seen"), [("/a<b>&", 1234, 1.5, True), ("/", 5, 20.0, None)])


def test_a_table_as_text() -> None:
    assert TABLE.lines() == [
        "Top <2> pages:",
        "PAGE    VIEWS   MEAN  SEEN",
        "/a<b>&  1,234   1.50  yes",
        "/           5  20.00",
    ]
    assert Table("Silences", ("device",), []).lines() == ["Silences: none"]


def test_a_table_as_html_escapes_its_texts() -> None:
    root = ElementTree.fromstring(f"<body>{TABLE.html()}</body>")
    assert root.findtext("h2") == "Top <2> pages"
    rows = [[cell.text or "" for cell in row] for row in root.iter("tr")]
    assert rows == [list(TABLE.columns), ["/a<b>&", "1,234", "1.50", "yes"], ["/", "5", "20.00", ""]]
    assert [cell.get("class") for cell in root.findall("table/tr/th")] == [None, "number", "number", None]
    assert "none" in Table("Silences", ("device",), []).html()
