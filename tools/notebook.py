"""Makes the notebook of the tutorial from its Python file: `python -m tools.notebook` writes it.

The Python file is the one that is edited; a test holds the two together.
"""

import json
from pathlib import Path
from typing import Any

TUTORIAL = Path(__file__).resolve().parents[1] / "examples" / "tutorial" / "tutorial.py"
NOTEBOOK = TUTORIAL.with_suffix(".ipynb")


def notebook(text: str) -> dict[str, Any]:
    """Cells as Jupyter has them."""
    metadata = {
        "language_info": {"name": "python"},
        "kernelspec": {"name": "python3", "display_name": "Python 3"},
    }
    cells = [_cell(number, part) for number, part in enumerate(text.split("# %%")[1:])]
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _cell(number: int, part: str) -> dict[str, Any]:
    head, _, body = part.partition("\n")
    lines = body.strip("\n").splitlines(keepends=True)
    if head.strip() == "[markdown]":
        words = [line.removeprefix("# ") if line.strip() != "#" else "\n" for line in lines]
        return {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": words}
    code = {"cell_type": "code", "id": f"cell-{number}", "metadata": {}, "source": lines}
    return code | {"execution_count": None, "outputs": []}


def main() -> None:
    """Write it."""
    NOTEBOOK.write_text(json.dumps(notebook(TUTORIAL.read_text()), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
