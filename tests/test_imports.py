"""The import rules of the package, read from its source."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# From the ground up: a package imports only from lines above its own, and from itself.
ORDER = [
    ["errors"],
    ["system"],
    ["models", "optimizer", "schedule", "loss", "distributed"],
    ["analysis"],
    ["config"],
    ["command"],
    ["data"],
    ["training"],
    ["monitor"],
    ["runs"],
    ["launch", "results", "run"],
    ["analysis.commands"],
    ["bench"],
    ["extra"],
    ["commands"],
    ["__main__", "__init__"],
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
FILES = sorted((ROOT / "deepnets").rglob("*.py"))
MODULES = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in FILES}
# Functions may import these; torch's counter of multiply-adds imports triton.
HEAVY = {"torchvision", "sklearn", "litdata", "mlflow", "wandb", "timm", "lightning", "torch.utils.flop_counter"}
# The commands import torch late, so that --help is instant, and the log imports matplotlib, which no plan needs.
LATE = ("deepnets.commands.train", "deepnets.commands.report", "deepnets.runs.log")
LIGHT = {"annotated_types", "math", "torch"} | sys.stdlib_module_names  # models may import these


def package_of(module: str) -> str:
    """Return the package of a module, e.g. `models` for deepnets.models.unit, `run` for deepnets.run."""
    parts = module.split(".")[1:]
    return "analysis.commands" if parts[:2] == ["analysis", "commands"] else [*parts, "__init__"][0]


def imported(node: ast.AST) -> list[str]:
    """Return the modules that an import statement names, none for other nodes."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        inner = [f"{node.module}.{alias.name}" for alias in node.names]
        return [name if name in MODULES else node.module for name in inner]
    return []


def edges() -> Iterator[tuple[str, str]]:
    """Yield each module with each module of deepnets that it imports."""
    for module, file in MODULES.items():
        for node in ast.walk(ast.parse(file.read_text())):
            yield from ((module, name) for name in imported(node) if name.startswith("deepnets."))


def test_packages_import_from_packages_below_them() -> None:
    upwards = [
        f"{module} imports {name}"
        for module, name in edges()
        if package_of(module) != package_of(name) and LEVEL[package_of(module)] <= LEVEL[package_of(name)]
    ]
    assert not upwards, "\n".join(upwards)


def test_no_module_imports_itself_in_a_circle() -> None:
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for module, name in edges():
        graph[module].add(name)
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_at_most_six_modules_lie_outside_of_packages() -> None:
    assert len(list((ROOT / "deepnets").glob("[!_]*.py"))) <= 6


def test_imports_stand_on_top_except_of_heavy_libraries() -> None:
    for file in FILES:
        if file in [MODULES[module] for module in LATE]:
            continue
        for function in ast.walk(ast.parse(file.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    for name in imported(node):
                        assert {name, name.split(".")[0]} & HEAVY, f"{file}: {name} in {function.name}"


def test_models_import_torch_only() -> None:
    for file in (ROOT / "deepnets" / "models").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            for name in imported(node):
                assert name.split(".")[0] in LIGHT or name.startswith(
                    ("deepnets.models", "deepnets.system.settings")
                ), f"{file}: {name}"


def test_only_config_build_finds_objects_by_name() -> None:
    words = ("instantiate(", "_locate(", "get_object(", "get_class(", "get_method(")
    users = [module for module, file in MODULES.items() if any(word in file.read_text() for word in words)]
    assert users == ["deepnets.config.build"]


def test_composing_does_not_wait_for_torch() -> None:
    program = "import sys; sys.argv = ['train.py']; import scripts.train; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.attack
def test_no_process_sends_another_a_pickle() -> None:
    sending = re.compile(r"(gather|broadcast|scatter|send|recv)_object|\bimport pickle|\bpickle\.")
    users = [module for module, file in MODULES.items() if sending.search(file.read_text())]
    assert users == []


@pytest.mark.attack
@pytest.mark.parametrize(
    ("words", "later"),
    [
        (["epochs=0"], "torch"),
        pytest.param(["batch_size=0"], "torch", marks=pytest.mark.slow),
        (["seed=-1"], "torch"),
        pytest.param(["threads=1000"], "torch", marks=pytest.mark.slow),
        (["epochs=1", "iterations=1"], "torch"),
        pytest.param(["schedule.milestones=x"], "torch", marks=pytest.mark.slow),
        (["schedule.milestones=[2,1]"], "torch"),
        pytest.param(["schedule.nope=1"], "torch", marks=pytest.mark.slow),
        (["sweep=digits_shortcuts", "epochs=0"], "torch"),
        pytest.param(["model.depth=19"], "torch._dynamo", marks=pytest.mark.slow),  # takes another second
    ],
)
def test_an_error_does_not_wait_for_what_training_imports(words: list[str], later: str) -> None:
    program = f"""
import sys
from deepnets.commands.train import main
from deepnets.command import run_command
try:
    run_command(main)
finally:
    assert "{later}" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if not line.startswith("runs composed: ")]  # if it takes 2 s
    assert len(lines) == 1
    assert lines[0].startswith("error: ")


def test_only_commands_import_what_is_extra() -> None:
    users = {module for module, name in edges() if package_of(name) == "extra" and package_of(module) != "extra"}
    assert users == {"deepnets.commands.bench", "deepnets.commands.report"}  # analyze imports its showcase by name


def test_only_the_export_imports_a_tracker() -> None:
    trackers = {"mlflow", "wandb"}
    users = [
        module
        for module, file in MODULES.items()
        if any(trackers & set(imported(node)) for node in ast.walk(ast.parse(file.read_text())))
    ]
    assert users == ["deepnets.extra.trackers"]
