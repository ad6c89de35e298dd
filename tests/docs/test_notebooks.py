"""The notebooks of the examples run from top to bottom, as a person would run them; their outputs are not kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.glob("*/*.ipynb"))


def test_there_are_two_without_outputs() -> None:
    nbformat = pytest.importorskip("nbformat")
    assert NOTEBOOKS == ["eagle/eagle.ipynb", "theta/theta.ipynb"]
    for name in NOTEBOOKS:
        cells = nbformat.read(EXAMPLES / name, as_version=4).cells
        assert not [cell for cell in cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    folder = Path(shutil.copytree((EXAMPLES / name).parent, tmp_path / "example"))
    monkeypatch.setenv("HOME", str(tmp_path))
    notebook = nbformat.read(folder / Path(name).name, as_version=4)
    nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [output.data for output in outputs if output.output_type == "execute_result"]
    assert shown
    assert all("<svg" in data["text/html"] for data in shown), "results draw themselves"
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "11.5685" in printed or "env_s" in printed
