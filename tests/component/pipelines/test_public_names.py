"""The public names of `levada.pipelines` are loaded on first use."""

import subprocess
import sys

import pytest

from levada import pipelines


def test_importing_the_package_does_not_import_pyspark() -> None:
    code = "import levada.pipelines, sys; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_libraries_that_draw_are_imported_when_a_report_is_drawn() -> None:
    code = "import levada.pipelines.flows.activity, sys; sys.exit(bool({'matplotlib', 'plotly'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    drawing = "import levada.pipelines.reports.image, sys; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", drawing]).returncode == 0


@pytest.mark.parametrize("name", pipelines.__all__)
def test_a_public_name_is_loaded_from_its_module(name: str) -> None:
    assert getattr(pipelines, name).__name__ == name


def test_other_names_do_not_exist() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nosuch'"):
        _ = pipelines.nosuch
