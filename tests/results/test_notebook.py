"""The notebook of docs/ runs as it stands."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.command import ROOT

NOTEBOOK = ROOT / "docs" / "results.ipynb"


def test_it_is_committed_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.slow
def test_its_cells_run_in_order_in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": tmp_path}}, timeout=600).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("identity" in str(output) for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)
