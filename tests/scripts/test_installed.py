"""The wheel, installed where no clone is on the path, and called from an empty folder."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import ROOT, metrics

Command = Callable[..., subprocess.CompletedProcess[str]]
SMALL = ("model.depth=8", "model.widths=[2,2,2]", "epochs=15", "checkpoint_seconds=0", "threads=1")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a shell in which `deepnets` is the installed wheel; its libraries are those of this one."""
    root = tmp_path_factory.mktemp("installed")
    source = root / "source"
    shutil.copytree(ROOT / "deepnets", source / "deepnets", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "conf", source / "conf")
    for name in ("setup.py", "MANIFEST.in", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    venv.create(root / "venv", with_pip=True)
    (site,) = (root / "venv").glob("lib/python*/site-packages")
    libraries = {str(Path(module.__file__ or "").parents[1]) for module in (pytest, sys.modules["numpy"])}
    python = root / "venv" / "bin" / "python"
    unset = ("PYTHONPATH", "VIRTUAL_ENV", "COLUMNS")  # pytest-xdist sets the width of its own terminal
    plain = {key: value for key, value in os.environ.items() if key not in unset}
    pip = [str(python), "-m", "pip", "install", "-q", "--no-deps"]
    (site / "libraries.pth").write_text("\n".join(libraries))
    done = subprocess.run([*pip, str(source)], env=plain, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (site / "deepnets" / "conf").iterdir()} >= {"train.yaml", "model", "sweep"}
    return plain | {"PATH": f"{python.parent}:{plain['PATH']}", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def command(environment: dict[str, str], tmp_path: Path) -> Command:
    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == code, f"{words}\n{done.stdout}{done.stderr}"
        return done

    return run


@pytest.mark.nightly
def test_a_killed_run_resumes_reports_and_is_analysed(
    command: Command, environment: dict[str, str], tmp_path: Path
) -> None:
    killed = ["deepnets", "train", *SMALL]
    process = subprocess.Popen(killed, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    while not list(tmp_path.glob("outputs/runs/*/seed0/checkpoint.previous.pt")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    (folder,) = tmp_path.glob("outputs/runs/*/seed0")
    assert not (folder / "result.json").exists()
    resumed = command("python", "-m", "deepnets.run", str(folder.relative_to(tmp_path)))
    assert "finished" in resumed.stdout
    assert "resuming at iteration" in (folder / "log.txt").read_text()
    command("deepnets", "train", *SMALL, "output_root=undisturbed")
    (undisturbed,) = tmp_path.glob("undisturbed/runs/*/seed0")
    assert metrics(folder) == metrics(undisturbed)
    assert json.loads((folder / "origin.json").read_text())["command"] == shlex.join(killed)

    report = command("deepnets", "report", "outputs/runs")
    assert "report.html" in report.stdout
    assert "deepnets report outputs/runs" in (tmp_path / "outputs/runs/report/report.html").read_text()
    command("deepnets", "analyze", "lesion", str(folder), "--images", "20")
    assert list((folder / "analysis").glob("lesion*.csv"))


def test_the_api_needs_no_clone(command: Command, tmp_path: Path) -> None:
    program = """
import deepnets
from deepnets.run import build_model, load_run
assert sum(p.numel() for p in build_model(["model=resnet20", "dataset=cifar10"]).parameters()) == 269_722
model, config = load_run("outputs/runs/digits_resnet,digits,epochs=1/seed0")
print(deepnets.__file__)
"""
    command("deepnets", "train", "epochs=1")
    assert "site-packages" in command("python", "-c", program).stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outputs"]


def test_every_command_of_a_new_projects_readme_works(
    command: Command, environment: dict[str, str], tmp_path: Path
) -> None:
    command("deepnets", "new", "lab")
    assert "/outputs/" in (tmp_path / "lab" / ".gitignore").read_text()
    project = tmp_path / "lab"
    readme = (project / "README.md").read_text()
    assert len(readme.splitlines()) <= 22
    commands = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)[0].splitlines()
    said = []
    for line in commands:
        done = subprocess.run(shlex.split(line), cwd=project, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        said.append(" ".join(done.stdout.split()))
    assert "9: 9 new" in said[0]
    assert "lab: 1 claim tested: 1 " in said[2]
    assert "learned_mix is lower than none" in (project / "outputs" / "lab" / "report" / "report.html").read_text()
    assert "1 passed" in said[-1]
    assert (project / "weights" / "weights.safetensors").is_file()
    assert "is there already" in command("deepnets", "new", "lab", code=1).stderr
    assert "must be one that Python can import" in command("deepnets", "new", "my-lab", code=1).stderr


def test_help_and_errors_speak_of_the_installed_command(command: Command) -> None:
    assert "deepnets train model=resnet20" in command("deepnets", "train", "--help").stdout
    assert "usage: deepnets report" in command("deepnets", "report", "--help").stdout
    assert "usage: deepnets bench" in command("deepnets", "bench", "--help").stdout
    assert "trian: no such verb; the nearest: train" in command("deepnets", "trian", code=2).stderr
    assert "tell: no such verb" in command("deepnets", "tell", code=2).stderr
    assert "model=resnet21: no such option" in command("deepnets", "train", "model=resnet21", code=1).stderr
