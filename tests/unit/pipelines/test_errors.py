"""Arguments of pipelines that are checked before Spark starts."""

import pytest

from levada.pipelines.errors import PipelineError, check_chart_file, check_durations


@pytest.mark.parametrize("length", ["10 seconds", "1 hour 30 minutes", "0.5 Seconds", "0 seconds"])
def test_lengths_of_time(length: str) -> None:
    check_durations(gap=length)


@pytest.mark.parametrize("length", ["", "soon", "5", "x minutes", "-5 minutes", "5 fortnights"])
def test_what_is_no_length_of_time_is_reported(length: str) -> None:
    """Spark takes such a gap for no session at all, and says nothing."""
    with pytest.raises(PipelineError, match=r"gap: '.*' is not a duration"):
        check_durations(gap=length)


def test_a_chart_is_an_image_or_a_page() -> None:
    check_chart_file("a.svg")
    check_chart_file("a/b.html")
    with pytest.raises(PipelineError, match=r"'a.png' must end in .svg, .*, or in .html"):
        check_chart_file("a.png")
