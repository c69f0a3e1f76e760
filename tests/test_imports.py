"""The import rules of the package, read from its source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# From the ground up: a module may import only from lines above its own, or from its own package.
ORDER = [
    ["errors", "resolvers", "allocation"],
    ["world"],
    ["config", "interruption", "metrics", "schedule", "optimizer", "models", "data"],
    ["cuda_graph"],
    ["step"],
    ["hardware", "revision", "nodes", "command", "processes", "analysis", "fit", "checkpoint", "folder", "decisions"],
    ["status", "monitor", "stack"],
    ["log", "naming", "assembly", "results"],
    ["record", "grouping", "checks"],
    ["execution", "cost"],
    ["run"],
    ["together"],
    ["launchers"],
    ["launch"],
    ["plan"],
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
FILES = sorted((ROOT / "deepnets").rglob("*.py"))


def part_of(file: Path) -> str:
    """`models` for deepnets/models/unit.py, `fit` for deepnets/fit.py."""
    return file.relative_to(ROOT / "deepnets").parts[0].removesuffix(".py")


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        if node.module == "deepnets":
            return [f"deepnets.{alias.name}" for alias in node.names]
        return [node.module]
    return []


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_only_go_down(file: Path) -> None:
    if (own := part_of(file)) == "__init__":
        return
    for node in ast.walk(ast.parse(file.read_text())):
        for name in imported(node):
            if name.startswith("deepnets."):
                other = name.split(".")[1]
                assert other == own or LEVEL[other] < LEVEL[own], f"{own} must not import {other}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_stand_on_top_except_of_heavy_libraries(file: Path) -> None:
    tree = ast.parse(file.read_text())
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                for name in imported(node):
                    assert name.split(".")[0] in {"torchvision", "sklearn"}, f"{file}: {name} in {function.name}"


def test_models_import_torch_only() -> None:
    for file in (ROOT / "deepnets" / "models").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            for name in imported(node):
                top = name.split(".")[0]
                assert top in {"torch", "math"} | sys.stdlib_module_names or name.startswith("deepnets.models"), name


def test_only_nodes_instantiates() -> None:
    users = [file.name for file in FILES if "instantiate(" in file.read_text()]
    assert users == ["nodes.py"]


def test_composing_does_not_wait_for_torch() -> None:
    program = "import sys; sys.argv = ['train.py']; import scripts.train; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
