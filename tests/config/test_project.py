"""A user's own options and classes: found wherever it is composed, trusted only where the command line says so."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deepnets.config.command_line import rows_of_command
from deepnets.config.compose import compose
from deepnets.config.project import read_project
from deepnets.config.trust import is_trusted, trust, trusted
from deepnets.errors import UserError
from deepnets.run import build_model, load_run
from deepnets.runs.naming import folder_of
from tests.command import ENVIRONMENT, ROOT
from tests.launch.test_slurm import slurm

SHORTCUT = """
from torch import nn

class Half(nn.Module):
    def __init__(self, *, by: float, ends):
        super().__init__()
        self.by, self.resize = by, ends.resized()

    def forward(self, x, r):
        return self.resize(x) + self.by * r
"""
OPTION = "# @package model\nshortcut:\n  _target_: lab_shortcuts.Half\n  _partial_: true\n  by: 0.5\n"
DEFAULTS = "defaults:\n- train\n- override dataset: synthetic\n- override model/shortcut: half\n- _self_\nepochs: 1\n"
SWEEP = """# @package _global_
epochs: 1
sweep:
  axes: [model/shortcut]
  reported: {statistic: single, test_error: {half: 3.5}}
hydra:
  mode: MULTIRUN
  sweeper: {params: {model/shortcut: "identity,half"}}
"""
SMALL = ["model.widths=[2,2,2]", "threads=1", "epochs=1"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in a folder whose name needs quotes; its modules are those of no other test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "lab_shortcuts", raising=False)
    folder = tmp_path / "my lab, new"
    for file, text in {
        "lab_shortcuts.py": SHORTCUT,
        "conf/model/shortcut/half.yaml": OPTION,
        "conf/lab.yaml": DEFAULTS,
        "conf/sweep/halves.yaml": SWEEP,
        "project.yaml": "options: conf\ndefaults: lab\n",
    }.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    return folder


def deepnets(folder: Path, *words: str, module: str = "deepnets") -> subprocess.CompletedProcess[str]:
    """The command, called in `folder`, where only deepnets is on the path."""
    environment = {**ENVIRONMENT, **os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def train(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return deepnets(folder, "train", *words, "output_root=outputs", *SMALL)


def test_names_are_composed_with_the_projects_options(project: Path) -> None:
    row = compose(["model.depth=14"], read_project(project / "project.yaml").search)
    assert row.config.model["shortcut"]["_target_"] == "lab_shortcuts.Half"
    assert folder_of(row).path.parts[-2:] == (
        "digits_resnet,synthetic,epochs=1,model.depth=14,model.shortcut=half",
        "seed0",
    )
    row = compose(["model/shortcut=identity", "epochs=1"], read_project(project / "project.yaml").search)
    assert folder_of(row).path.parts[-2] == "digits_resnet,synthetic,epochs=1"


def test_a_project_may_be_a_link(project: Path) -> None:
    (project / "link.yaml").symlink_to(project / "project.yaml")
    (project / "loop.yaml").symlink_to("loop.yaml")
    assert compose(["epochs=1"], read_project(project / "link.yaml").search).config.dataset["_target_"]
    with pytest.raises(UserError, match=r"loop\.yaml: cannot be read as a project's file"):
        read_project(project / "loop.yaml")


def test_the_projects_network_is_built_and_nothing_is_trusted_by_itself(project: Path) -> None:
    model = build_model(["model.depth=14"], trust=project / "project.yaml")
    assert type(model.units[0].shortcut).__name__ == "Half"
    with pytest.raises(UserError, match="not one of the classes a configuration may name"):
        build_model([f"hydra.searchpath=['file://{project}/conf']", "model/shortcut=half"])


def test_a_sweep_whose_rows_would_be_left_out_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "conf" / "sweep" / "halves.yaml").write_text(SWEEP.replace("  mode: MULTIRUN\n", ""))
    words = ["scripts/train.py", "--project", str(project / "project.yaml"), "sweep=halves"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(UserError, match="add `mode: MULTIRUN`"):
        rows_of_command()
    monkeypatch.setattr(sys, "argv", [*words, "-m"])
    assert len(rows_of_command()) == 2


@pytest.mark.nightly
def test_a_sweep_of_the_project_trains_resumes_and_is_analysed(project: Path) -> None:
    done = train(project, "--project", "project.yaml", "sweep=halves", "launcher=pool")
    assert done.returncode == 0, done.stderr
    folder = project / "outputs" / "halves+model.widths=2,2,2"
    assert sorted(path.parent.parent.name for path in folder.glob("*/seed0/result.json")) == ["half", "identity"]
    run = folder / "half" / "seed0"
    assert "trust" not in (run / "config.yaml").read_text()
    assert "--project project.yaml" in json.loads((run / "origin.json").read_text())["command"]
    assert "already finished" in train(project, "--project", "project.yaml", "sweep=halves").stdout

    # A frozen folder needs no options, and trust anew.
    shutil.rmtree(project / "conf")
    (project / "project.yaml").write_text("{}\n")
    (run / "result.json").unlink()
    refused = deepnets(project, str(run), module="deepnets.run")
    assert "not one of the classes" in refused.stderr
    assert refused.returncode == 1
    resumed = deepnets(project, str(run), "--project", "project.yaml", module="deepnets.run")
    assert resumed.returncode == 0, resumed.stderr
    with pytest.raises(UserError, match=r'lab_shortcuts\.Half.* in Python, trust="lab_shortcuts.Half"'):
        load_run(run)
    model, _ = load_run(run, trust=project / "project.yaml")
    assert model.units[0].shortcut.by == 0.5
    analysed = deepnets(
        project, "analyze", "lesion", str(run), "--project", "project.yaml", "--images", "10", "--device", "cpu"
    )
    assert analysed.returncode == 0, analysed.stderr


@pytest.mark.nightly
def test_jobs_of_slurm_find_the_projects_classes(project: Path) -> None:
    jobs = ["launcher=slurm", "launcher.cpus=1", "launcher.wait=true", "device=cpu"]
    with slurm():
        done = train(project, "--project", "project.yaml", "sweep=halves", *jobs)
        assert done.returncode == 0, done.stdout + done.stderr
        (project / "elsewhere").mkdir()
        given = ["--config-dir=../conf", "--trust=../project.yaml", "sweep=halves"]
        done = train(project / "elsewhere", *given, *jobs)
        assert done.returncode == 0, done.stdout + done.stderr
        done = train(project / "elsewhere", given[0], *given[2:], *jobs, "seed=5")
        assert "'lab_shortcuts.Half' is not one of the classes" in done.stdout + done.stderr
    finished = [file.parent for file in project.rglob("result.json")]
    assert len(finished) == 4
    for folder in finished:
        assert (folder / "job.json").is_file()
        assert json.loads((folder / "result.json").read_text())["status"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize(
    "search",
    [pytest.param("--config-dir=conf", marks=pytest.mark.nightly), "hydra.searchpath=['file://HERE/conf']"],
)
def test_options_without_a_project_trust_nothing(project: Path, search: str) -> None:
    search = search.replace("HERE", str(project))
    plan = train(project, "sweep=halves", search, "plan=true", "hydra.verbose=false")
    assert plan.returncode == 1
    assert "half/seed0: model.shortcut._target_: 'lab_shortcuts.Half' is not one of the classes" in plan.stdout
    assert "1 of 2 runs cannot start" in plan.stdout
    trusted = train(project, "sweep=halves", search, "plan=true", "--trust=project.yaml")
    assert trusted.returncode == 0, trusted.stdout


@pytest.mark.slow
def test_a_configuration_cannot_trust(project: Path) -> None:
    (project / "conf" / "lab.yaml").write_text(DEFAULTS + "trust: [lab_shortcuts.Half]\n")
    done = train(project, "--config-name", "lab", "--config-dir", "conf")
    assert done.returncode == 1
    assert "lab.yaml: trust: no such key" in done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("trust: [a.B]", "trust: Extra inputs are not permitted; the file may have options and defaults"),
        ("defaults: [a.B]", "defaults: Input should be a valid string"),
        ("options: nowhere", "nowhere: no such folder of options"),
        ("options: [", "not valid YAML"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "project.yaml").write_text(content)
    with pytest.raises(UserError, match=message):
        read_project(tmp_path / "project.yaml")
    with pytest.raises(UserError, match="No such file"):
        read_project(tmp_path / "other.yaml")


def test_an_option_that_would_never_be_read_is_refused(project: Path) -> None:
    (project / "conf" / "dataset").mkdir()
    (project / "conf" / "dataset" / "digits.yaml").write_text("defaults: [synthetic]")
    with pytest.raises(UserError, match=r"dataset/digits.yaml: deepnets has an option of this name"):
        read_project(project / "project.yaml")


def test_only_a_named_file_makes_classes_importable(project: Path) -> None:
    trust("a.B")
    assert str(project) not in sys.path
    trust(project / "project.yaml")
    assert sys.path[-1] == str(project)
    assert trusted() == ("a.B", str(project / "project.yaml"))


def test_a_file_or_a_module_stands_for_what_it_defines_itself(tmp_path: Path) -> None:
    (tmp_path / "own_nets.py").write_text("import os\nfrom torch.nn import ReLU\n\nclass Net:\n    pass\n")
    (tmp_path / "beside.py").write_text("class Other:\n    pass\n")
    (tmp_path / "torch.py").write_text("class Net:\n    pass\n")
    trust(tmp_path / "own_nets.py")
    assert is_trusted("own_nets.Net")
    for target in ("own_nets.ReLU", "own_nets.os", "own_nets.os.system", "beside.Other", "own_nets", "torch.Net", ""):
        assert not is_trusted(target)
    trust("fractions")
    assert is_trusted("fractions.Fraction")
    assert not is_trusted("fractions.Decimal")  # which it imports
    trust("nowhere.nets")
    assert not is_trusted("nowhere.nets.Net")
    assert not is_trusted("__main__.Net")


def test_a_project_stands_for_the_modules_beside_its_file(project: Path) -> None:
    (project / "lab_nets").mkdir()
    (project / "lab_nets" / "__init__.py").write_text("class Small:\n    pass\n")
    (project / "lab_nets" / "deep.py").write_text("class Deep:\n    pass\n")
    (project / "torch.py").write_text("class Net:\n    pass\n")
    trust(project / "project.yaml")
    for target in ("lab_shortcuts.Half", "lab_nets.Small", "lab_nets.deep.Deep"):
        assert is_trusted(target)
    for target in ("lab_shortcuts.nn", "torch.Net", "torch.nn.ReLU", "os.system"):
        assert not is_trusted(target)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"a: &a [1]\nb: *a", b"[" * 100_000, b"options: '${oc.env:HOME}'", b"5"]
)
def test_a_file_that_is_no_projects_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "project.yaml").write_bytes(content)
    with pytest.raises(UserError, match=r"project\.yaml: ") as refused:
        read_project(tmp_path / "project.yaml")
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError):
        read_project(tmp_path)
