"""A researcher's own code is a part of a run: what is read, copied, compared, refused, and executed where asked for."""

import importlib
import json
import re
import shutil
import signal
import subprocess
import sys
from importlib._bootstrap_external import _code_to_timestamp_pyc
from importlib.metadata import version
from importlib.util import cache_from_source
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from deepnets.config.trust import choosing_code, trusting
from deepnets.errors import UserError
from deepnets.launch.reuse import selecting, trained_before_change, use_chosen_code
from deepnets.run import load_classifier, load_run
from deepnets.runs import checkpoint, code
from deepnets.runs.code import (
    code_of,
    code_to_execute,
    copy_code,
    sources_of,
    store,
)
from deepnets.runs.contents import Code, Origin
from deepnets.runs.folder import OtherCode, RunFolder
from deepnets.runs.weights import read_weights
from tests.command import ENVIRONMENT, ROOT, row, start, train

SHORTCUT = '''"""A shortcut of a project of one's own."""

import torch
from torch import Tensor, nn

from deepnets.models.resize import ShortcutShape
from own_scales import factor


class Scaled(nn.Module):
    """y = x + a r."""

    def __init__(self, *, start: float, ends: ShortcutShape) -> None:
        super().__init__()
        self.resize, self.a = ends.resized(), nn.Parameter(torch.tensor(start))

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        return self.resize(x) + factor() * self.a * r
'''
SCALES = '''"""Factors."""


def factor() -> float:
    """Of the branch."""
    return 1.0  # for now
'''
OPTION = "# @package model\nshortcut:\n  _target_: own_shortcuts.Scaled\n  _partial_: true\n  start: 1.0\n"
RUN = ["model.depth=8", "model.widths=[8,16,32]", "model/shortcut=own", "threads=1", "device=cpu"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])  # trust makes folders importable
    monkeypatch.setattr(code, "_stored", set())
    folder = tmp_path / "project"
    (folder / "conf/model/shortcut").mkdir(parents=True)
    (folder / "own_shortcuts.py").write_text(SHORTCUT)
    (folder / "own_scales.py").write_text(SCALES)
    (folder / "unused.py").write_text("x = 1\n")
    (folder / "conf/model/shortcut/own.yaml").write_text(OPTION)
    return folder


def words(project: Path, root: Path, *more: str) -> list[str]:
    own = [f"--config-dir={project / 'conf'}", f"--trust={project / 'own_shortcuts.py'}", f"output_root={root}"]
    return [*RUN, *own, *more]


def of_project(*targets: str) -> dict[str, Path | str]:
    config = row(Path("outputs")).config
    config.model["shortcut"] = [{"_target_": target} for target in targets]
    return sources_of(config)


def test_a_run_of_deepnets_classes_needs_no_code_of_ones_own() -> None:
    assert code_of(row(Path("outputs")).config) is None


def test_the_modules_are_found_by_reading(project: Path) -> None:
    package = project / "lab" / "inner"
    package.mkdir(parents=True)
    (project / "lab/__init__.py").write_text("raise RuntimeError('imported')\n")
    (project / "lab/deep.py").write_text("from . import base\nfrom .inner import leaf as other\nimport json, torch\n")
    (project / "lab/base.py").write_text("def f():\n    from lab.inner.leaf import x\n")
    (package / "leaf.py").write_text("x = 1\nimport own_scales\n")
    with trusting(project / "own_shortcuts.py"):  # which makes the folder importable
        found = of_project("lab.deep.Net")
    assert sorted(found) == ["lab", "lab.base", "lab.deep", "lab.inner.leaf", "own_scales"]
    assert "lab" not in sys.modules
    assert found["lab"] == project / "lab/__init__.py"
    assert list(of_project("torch.optim.RMSprop")) == ["torch"]
    assert of_project("torch.optim.RMSprop")["torch"] == str(torch.__version__).partition("+")[0]
    assert of_project("yaml.SafeLoader") == {"yaml": version("PyYAML")}
    assert of_project("json.loads") == of_project("nowhere.Net") == {}


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        (("  # for now", ""), False),
        (('    """Of the branch."""\n', ""), False),
        (('    """Of the branch."""\n    return 1.0', '    """Other words."""\n\n    return (1.0)'), False),
        (("1.0", "5.0"), True),
        (("factor() ->", "factor(x=1) ->"), True),
    ],
)
def test_comments_and_docstrings_do_not_count(project: Path, change: tuple[str, str], counts: bool) -> None:
    assert change[0] in SCALES
    assert (code._hash(SCALES) != code._hash(SCALES.replace(*change))) == counts


def test_runs_of_earlier_code_are_named_and_their_code_is_kept(project: Path, tmp_path: Path) -> None:
    config = row(tmp_path).config
    config.model["shortcut"] = {"_target_": "own_shortcuts.Scaled", "_partial_": True, "start": 1.0}
    folder = RunFolder(tmp_path / "outputs" / "sweep" / "own" / "seed0")
    with trusting(project / "own_shortcuts.py"):
        noted = code_of(config)
        assert noted
        folder.freeze(config, Origin(code=noted))
        store(folder, config, noted)
        assert trained_before_change([folder], {folder: ["seed=0"]}) == []
        (project / "own_scales.py").write_text(SCALES.replace("1.0", "5.0"))
        (line,) = trained_before_change([folder], {folder: ["seed=0"]})
        assert line.startswith("1 finished run was trained before your code changed (own_scales.py)")
        assert line.endswith("to train it again here, add overwrite=true")
        others = {folder: ["seed=0"], RunFolder(folder.path.parent / "seed1"): ["seed=1"]}
        assert trained_before_change([folder], others)[0].endswith("add seed=0 overwrite=true")
    copy_code(folder, tmp_path / "records")
    assert (tmp_path / "records" / ".code" / noted.hash / "own_scales.py").read_text() == SCALES


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (["focal/0", "focal/1"], "loss=focal seed=0,1"),
        (["focal/0", "focal/1", "focal/2"], "loss=focal"),
        (["focal/2", "plain/2"], "seed=2"),
        (["focal/0", "plain/1"], None),
        ([f"{loss}/{seed}" for loss in ("focal", "plain") for seed in range(3)], ""),
    ],
)
def test_words_that_select_runs_of_a_command(chosen: list[str], words: str | None) -> None:
    runs = {
        RunFolder(f"/outputs/losses/{loss}/{seed}"): ["epochs=3", f"loss={loss}", f"seed={seed}"]
        for loss in ("focal", "plain")
        for seed in range(3)
    }
    assert selecting([RunFolder(f"/outputs/losses/{each}") for each in chosen], runs) == words


def test_words_of_paired_axes_and_of_an_added_key() -> None:
    pairs = [("1", "x"), ("2", "y"), ("3", "x")]
    runs = {RunFolder(f"/outputs/pairs/{a}/seed0"): [f"+a={a}", f"b={b}", "seed=0"] for a, b in pairs}
    folders = [*runs]
    assert selecting([folders[0], folders[2]], runs) == "b=x"  # all axes of a zip would be new pairs
    assert selecting([folders[1]], runs) == "b=y"
    assert selecting([folders[0]], runs) == "+a=1"


def test_a_process_that_executes_a_copy_takes_no_other_version(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepnets.config.trust._copies", [])
    monkeypatch.setattr(sys, "pycache_prefix", None)
    config = row(tmp_path).config
    config.model["shortcut"] = {"_target_": "own_shortcuts.Scaled", "_partial_": True, "start": 1.0}
    earlier, later = (RunFolder(tmp_path / "outputs" / "sweep" / "own" / f"seed{seed}") for seed in range(2))
    with trusting(project / "own_shortcuts.py"):
        for folder, text in ((earlier, SCALES), (later, SCALES.replace("1.0", "5.0"))):
            (project / "own_scales.py").write_text(text)
            noted = code_of(config)
            assert noted
            folder.freeze(config, Origin(code=noted))
            store(folder, config, noted)
        code._stored.clear()  # as in another process
        assert code_to_execute(later, config) == later.origin.code
        with choosing_code("frozen"):
            assert code_to_execute(earlier, config) == earlier.origin.code
        assert code_to_execute(earlier, config) == earlier.origin.code
        unnoted = RunFolder(tmp_path / "outputs" / "sweep" / "own" / "seed2")
        unnoted.freeze(config, Origin())
        for folder, choice in (
            *((later, choice) for choice in (None, "current", "frozen")),
            *((unnoted, choice) for choice in (None, "current")),
            (earlier, "current"),
        ):
            with choosing_code(choice), pytest.raises(UserError, match="needs another version of own_scales than this"):
                code_to_execute(folder, config)
        (project / "own_scales.py").write_text(SCALES + "# as it was\n")  # so both versions are one again
        for folder, choice in ((earlier, "current"), (unnoted, None), (unnoted, "current")):
            with choosing_code(choice):
                assert code_to_execute(folder, config) == earlier.origin.code
        with pytest.raises(OtherCode):
            code_to_execute(later, config)


def test_a_new_row_takes_the_frozen_code_of_the_commands_other_rows(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("deepnets.config.trust._copies", [])
    monkeypatch.setattr(sys, "pycache_prefix", None)
    new = row(tmp_path, "code=frozen")
    new.config.model["shortcut"] = {"_target_": "own_shortcuts.Scaled", "_partial_": True, "start": 1.0}
    kept, seed, other = (RunFolder(tmp_path / name) for name in ("runs/a/seed0", "runs/a/seed1", "runs/b/seed1"))
    with trusting(project / "own_shortcuts.py"), choosing_code("frozen"):
        noted = code_of(new.config)
        assert noted
        kept.freeze(new.config, Origin(code=noted))
        store(kept, new.config, noted)
        (kept.path / "checkpoint.pt").touch()
        assert use_chosen_code([new], [other], []) == {}
        (project / "own_scales.py").write_text(SCALES.replace("1.0", "5.0"))
        assert use_chosen_code([new, new], [seed, other], []) == {seed: noted, other: noted}
        told = " ".join(capsys.readouterr().out.split())
        assert "code=frozen: 1 run will use your code as it was" in told
        used = f"code=frozen: no seed of b has begun, so the code of other rows is used ({noted.hash})"
        assert used in told


def test_a_module_that_is_no_python_is_compared_as_text() -> None:
    assert code._hash("def (") != code._hash("def ( ")


def test_where_the_code_is_missing_its_copy_is_offered(project: Path, tmp_path: Path) -> None:
    config = row(tmp_path).config
    config.model["shortcut"] = {"_target_": "own_shortcuts.Scaled", "_partial_": True, "start": 1.0}
    folder = RunFolder(tmp_path / "runs" / "row" / "seed0")
    with trusting(project / "own_shortcuts.py"):
        noted = code_of(config)
    folder.freeze(config, Origin(code=noted))
    copy = store(folder, config, noted)
    code._stored.clear()  # as in another process
    (project / "own_scales.py").rename(tmp_path / "own_scales.py")
    with trusting(project / "own_shortcuts.py"), pytest.raises(OtherCode, match=r"began: own_scales.py \(missing\)\."):
        code_to_execute(folder, config)
    sys.path.remove(str(project))
    missing = rf"your code is not here \(own_scales.py, own_shortcuts.py\); --code frozen executes its copy, {copy}"
    with pytest.raises(UserError, match=f"{missing}, and needs --trust own_shortcuts.Scaled too$"):
        code_to_execute(folder, config)
    with trusting("own_shortcuts.Scaled"), pytest.raises(UserError, match=f"{missing}$"):
        code_to_execute(folder, config)
    shutil.rmtree(copy)
    assert code_to_execute(folder, config) is None  # building the network says what is missing


def test_the_rest_of_a_package_is_imported_from_the_copy_after_an_edit(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepnets.config.trust._copies", [])
    monkeypatch.setattr(sys, "pycache_prefix", None)
    (project / "own_package").mkdir()
    (project / "own_package" / "__init__.py").write_text("")
    for name in ("early", "late"):
        (project / "own_package" / f"{name}.py").write_text("class Scaled:\n    version = 1\n")
    config = row(tmp_path).config
    config.model["shortcut"] = [{"_target_": f"own_package.{name}.Scaled"} for name in ("early", "late")]
    folder = RunFolder(tmp_path / "runs" / "row" / "seed0")
    sys.path.insert(0, str(project))
    noted = code_of(config)
    early = importlib.import_module("own_package.early")
    folder.freeze(config, Origin(code=noted))
    store(folder, config, noted)
    for name in ("early", "late"):
        (project / "own_package" / f"{name}.py").write_text("class Scaled:\n    version = 22\n")
    assert code_to_execute(folder, config) == noted
    late = importlib.import_module("own_package.late")
    assert (early.Scaled.version, late.Scaled.version) == (1, 1)
    assert code_of(config).modules == noted.modules


def test_the_hash_of_a_copy_cannot_leave_the_folder() -> None:
    with pytest.raises(ValueError, match="pattern"):
        Code(hash="../../../../etc")
    with pytest.raises(UserError, match="frozen, current"), choosing_code("../etc"):
        pass


@pytest.mark.attack
def test_byte_code_planted_in_a_copy_is_not_executed(project: Path, tmp_path: Path) -> None:
    run = row(tmp_path / "out", *RUN[:2])
    run.config.model["shortcut"] = {"_target_": "own_shortcuts.Scaled", "_partial_": True, "start": 1.0}
    folder = RunFolder(tmp_path / "out" / "runs" / "a" / "seed0")
    with trusting(project / "own_shortcuts.py"):
        copy = code.store(folder, run.config, code_of(run.config))
    source = copy / "own_scales.py"
    planted = compile("open('planted', 'w').close()\nfactor = float", str(source), "exec")
    about = source.stat()
    pyc = Path(cache_from_source(str(source)))
    pyc.parent.mkdir()
    pyc.write_bytes(_code_to_timestamp_pyc(planted, int(about.st_mtime), about.st_size))
    program = "from deepnets.config.trust import execute_from\n{}import own_scales\nprint(own_scales.factor())"
    for execute in ("", f"execute_from(__import__('pathlib').Path({str(copy)!r}))\n"):
        done = subprocess.run(
            [sys.executable, "-c", program.format(execute)],
            cwd=tmp_path,
            env=ENVIRONMENT | {"PYTHONPATH": f"{ROOT}:{copy}", "XDG_CACHE_HOME": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.strip() == ("1.0" if execute else "0.0"), done.stderr  # the attack works where it is read
        assert (tmp_path / "planted").exists() == (not execute)
        (tmp_path / "planted").unlink(missing_ok=True)


def stopped(project: Path, root: Path, *more: str) -> Path:
    """A run folder that is stopped behind its second epoch."""
    process = start(*words(project, root, "epochs=5", *more))
    for line in process.stdout:
        if line.startswith("epoch 2/"):
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    (folder,) = root.glob("runs/*/seed0")
    return folder


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load(folder)[0]["training"]["model"]


def result_of(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


@pytest.mark.slow
def test_code_that_changes_while_a_run_is_unfinished(project: Path, tmp_path: Path) -> None:
    root, undisturbed = tmp_path / "out", tmp_path / "undisturbed"
    done = train(*words(project, undisturbed, "epochs=5"))
    assert done.returncode == 0, done.stderr
    folder = stopped(project, root)
    name = folder.relative_to(root)
    (project / "own_scales.py").write_text(SCALES.replace("  # for now", "  # documented"))
    assert code_now(project, folder) == RunFolder(folder).origin.code
    (project / "own_scales.py").write_text(SCALES.replace("1.0", "5.0"))

    # Neither version is taken unasked, whichever command goes on.
    before = (folder / "checkpoint.pt").read_bytes()
    refused = train(*words(project, root, "epochs=5"))
    assert refused.returncode == 1
    assert "your code has changed since the run began: own_scales.py" in refused.stderr
    assert "add code=frozen; with today's code, code=current, but rows with seeds of both versions" in refused.stderr
    assert "Traceback" not in refused.stderr
    planned = train(*words(project, root, "epochs=5", "plan=true"))
    assert planned.returncode == 1
    assert "your code has changed since the run began: own_scales.py" in planned.stdout
    again = [sys.executable, "-m", "deepnets.run", str(folder), f"--trust={project / 'own_shortcuts.py'}"]
    by_folder = subprocess.run(again, capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT, check=False)
    assert by_folder.returncode == 1
    assert "--code frozen; with today's code, --code current." in by_folder.stderr
    assert not (folder / "result.json").exists()
    assert (folder / "checkpoint.pt").read_bytes() == before
    for load in (load_run, load_classifier):
        with pytest.raises(OtherCode, match=r"own_scales\.py"):
            load(folder, trust=project / "own_shortcuts.py")

    shutil.copytree(root, tmp_path / "current")
    done = train(*words(project, root, "epochs=5", "code=frozen"))
    assert done.returncode == 0, done.stderr
    reference = weights_of(next(undisturbed.glob("runs/*/seed0")))
    assert all(torch.equal(tensor, reference[key]) for key, tensor in weights_of(folder).items())
    assert list(result_of(folder)["code"]) == ["0"]

    done = train(*words(project, tmp_path / "current", "epochs=5", "code=current"))
    assert done.returncode == 0, done.stderr
    assert "your code has changed since the run began: own_scales.py" in done.stdout
    by_iteration = result_of(tmp_path / "current" / name)["code"]
    iterations = [int(iteration) for iteration in by_iteration]
    assert len(iterations) == 2
    assert iterations[0] == 0 < iterations[1]
    assert len({each["hash"] for each in by_iteration.values()}) == 2

    # Of finished runs it is said; their networks are loaded by the code that trained them, if that is asked for.
    done = train(*words(project, root, "epochs=5"))
    assert done.returncode == 0
    planned = train(*words(project, root, "epochs=5", "plan=true"))
    for each in (done, planned):
        assert "1 finished run was trained before your code changed (own_scales.py)" in each.stdout
    export = [sys.executable, "-m", "deepnets", "export", str(folder), "--to", str(tmp_path / "weights")]
    export += [f"--trust={project / 'own_shortcuts.py'}"]
    for choice, exit_code in (([], 1), (["--code", "frozen"], 0), (["--code", "current"], 0)):
        done = subprocess.run([*export, *choice], capture_output=True, text=True, cwd=ROOT, check=False)
        assert done.returncode == exit_code, done.stderr
        assert not choice or f"predict too needs --code {choice[1]}\n" in done.stdout
        assert not choice or f', code="{choice[1]}")' in (tmp_path / "weights" / "README.md").read_text()
    copied = 'Without them, `trust=["own_shortcuts.Scaled"], code="frozen"` executes their copy in `.code`.'
    assert copied in (tmp_path / "weights" / "README.md").read_text()
    assert "your code has changed since the run began: own_scales.py" in done.stdout

    exported = tmp_path / "weights"
    with trusting(project / "own_shortcuts.py"), pytest.raises(OtherCode, match=r"own_scales\.py"):
        read_weights(exported)
    for place in (folder, exported):
        done = train(*words(project, tmp_path / f"from_{place.name}", "epochs=1", f"weights='{place}'"))
        assert done.returncode == 0, done.stderr
        assert f"starts from the weights in {RunFolder(place)}; own_scales.py has changed" in done.stdout
    image = exported / "image.png"
    Image.new("L", (8, 8)).save(image)
    predict = [sys.executable, "-m", "deepnets", "predict", str(exported), str(image), export[-1]]
    for choice, exit_code in (([], 1), (["--code", "frozen"], 0), (["--code", "current"], 0)):
        table = tmp_path / f"{choice}.csv"
        done = subprocess.run([*predict, *choice, f"--to={table}"], capture_output=True, text=True, check=False)
        assert done.returncode == exit_code, done.stderr
    assert (tmp_path / f"{['--code', 'frozen']}.csv").read_text() != table.read_text()

    verify = [sys.executable, "-m", "deepnets", "report", str(folder), "--verify", str(tmp_path), export[-1]]
    for choice, said in (
        ([], "To go on with the code as it was, add --code frozen"),
        (["--code=frozen"], "verified: "),
    ):
        done = subprocess.run([*verify, *choice], capture_output=True, text=True, cwd=ROOT, check=False)
        assert said in done.stdout + done.stderr
        assert "DIFFERS" not in done.stdout

    # A copied folder may lack the code, and a copy of the code may have been edited.
    shutil.copytree(folder, tmp_path / "elsewhere" / name)
    shutil.rmtree(root / "runs" / ".code" / by_iteration["0"]["hash"] / "__pycache__", ignore_errors=True)
    (copied,) = (root / "runs" / ".code" / by_iteration["0"]["hash"]).glob("own_scales.py")
    copied.write_text(SCALES.replace("1.0", "__import__('os').getpid()"))
    for place, reason in (
        (tmp_path / "elsewhere" / name, "is missing"),
        (folder, "its code does not have the hash in its name, and is not executed"),
    ):
        done = subprocess.run(
            [*export[:4], str(place), *export[5:], "--code", "frozen"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        assert done.returncode == 1
        assert reason in done.stderr

    clean = [sys.executable, "-m", "deepnets", "clean", str(root), "--yes", "--keep-weights"]  # it executes no code
    done = subprocess.run(clean, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout
    assert not list(folder.glob("checkpoint*"))
    kept = load_file(folder / "weights.safetensors")
    assert kept.keys() == reference.keys()
    assert all(torch.equal(tensor, reference[key]) for key, tensor in kept.items())


@pytest.mark.slow
def test_frozen_code_trains_more_seeds_of_a_row(project: Path, tmp_path: Path) -> None:
    root, undisturbed = tmp_path / "out", tmp_path / "undisturbed"
    for place, seeds in ((root, "0,1"), (undisturbed, "2")):
        done = train(*words(project, place, "epochs=1", "-m", f"seed={seeds}"))
        assert done.returncode == 0, done.stderr
    (project / "own_scales.py").write_text(SCALES.replace("1.0", "5.0"))
    done = train(*words(project, root, "epochs=1", "seed=2"))
    assert "have other code of yours" in done.stdout
    assert "to train with the old code instead, add code=frozen" in done.stdout
    (row_folder,) = (folder for folder in (root / "runs").iterdir() if not folder.name.startswith("."))
    codes = {seed: result_of(row_folder / f"seed{seed}")["code"]["0"]["hash"] for seed in (0, 1, 2)}
    assert codes[0] == codes[1] != codes[2]

    mixed = train(*words(project, root, "epochs=1", "-m", "seed=0,2")).stdout
    assert re.search(rf"your code *\n *seed0 .* {codes[0]} *\n *seed2 .* {codes[2]} *\n", mixed), mixed
    assert "your code  " not in train(*words(project, root, "epochs=1", "-m", "seed=0,1")).stdout
    for more in (["seed=2", "overwrite=true", "plan=true"], ["seed=2", "overwrite=true"], ["seed=3"]):
        done = train(*words(project, root, "epochs=1", "code=frozen", *more))
        assert done.returncode == 0, done.stderr
        assert "other code of yours" not in done.stdout
        told = f"code=frozen: 1 run will use your code as it was ({codes[0]}: own_scales.py changed since; rows digits_"
        assert told in done.stdout
    assert [result_of(row_folder / f"seed{seed}")["code"]["0"]["hash"] for seed in (2, 3)] == [codes[0]] * 2
    assert RunFolder(row_folder / "seed3").origin.code == RunFolder(row_folder / "seed0").origin.code
    reference = weights_of(next(undisturbed.glob("runs/*/seed2")))
    assert all(torch.equal(tensor, reference[key]) for key, tensor in weights_of(row_folder / "seed2").items())

    done = train(*words(project, root, "epochs=2", "code=frozen", "plan=true"))  # a row without seeds
    assert done.returncode == 0
    assert "code=frozen: no seed of digits_resnet," in done.stdout
    assert train(*words(project, root, "epochs=1", "seed=4")).returncode == 0
    for more in (["plan=true"], []):
        done = train(*words(project, root, "epochs=1", "-m", "seed=0,5", "code=frozen", *more))
        assert done.returncode == 1
        versions = f"{codes[0]} and {codes[2]}"
        assert f"seed5: code=frozen cannot choose between versions {versions}" in done.stdout + done.stderr

    # Runs are deleted only when each has its version.
    done = train(*words(project, root, "epochs=1", "-m", "seed=4,5", "code=frozen", "overwrite=true"))
    assert done.returncode == 1
    assert (row_folder / "seed4" / "result.json").is_file()
    done = train(*words(project, undisturbed, "epochs=1", "-m", "seed=2,3", "code=frozen", "overwrite=true"))
    assert done.returncode == 0, done.stderr
    assert {result_of(folder)["code"]["0"]["hash"] for folder in undisturbed.glob("runs/*/seed*")} == {codes[0]}


def code_now(project: Path, folder: Path) -> Code | None:
    with trusting(project / "own_shortcuts.py"):
        return code_to_execute(RunFolder(folder), RunFolder(folder).config)


@pytest.mark.slow
def test_an_edit_while_a_command_trains_does_not_reach_its_other_runs(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In the first command the check imports the module. In the second the check is remembered, so that only the run
    # would import it, after the edit, and takes the copy.
    monkeypatch.setitem(ENVIRONMENT, "XDG_CACHE_HOME", str(tmp_path / "cache"))
    disturbed, undisturbed = tmp_path / "disturbed", tmp_path / "undisturbed"
    for more in (["seed=0,1"], ["model/shortcut=identity,own", "seed=2"]):
        given = [word for word in words(project, disturbed, "epochs=2", "-m", *more) if word != "model/shortcut=own"]
        own = [] if len(more) > 1 else ["model/shortcut=own"]
        process = start(*given, *own)
        for line in process.stdout:
            if line.startswith("[1/2]"):
                (project / "own_scales.py").write_text(SCALES.replace("1.0", "5.0"))
                break
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        (project / "own_scales.py").write_text(SCALES)
        done = train(*words(project, undisturbed, "epochs=2", "-m", more[-1]), XDG_CACHE_HOME=str(tmp_path / "cache"))
        assert done.returncode == 0, done.stderr
    folders = sorted(undisturbed.glob("runs/*/seed*"))
    assert len(folders) == 3
    for folder in folders:
        other = disturbed / folder.relative_to(undisturbed)
        assert [code["hash"] for code in result_of(other)["code"].values()] == [
            code["hash"] for code in result_of(folder)["code"].values()
        ]
        reference = weights_of(folder)
        assert all(torch.equal(tensor, reference[key]) for key, tensor in weights_of(other).items())


@pytest.mark.slow
def test_runs_of_a_pool_execute_the_code_of_their_command(project: Path, tmp_path: Path) -> None:
    command = [*words(project, tmp_path / "pool", "epochs=3"), "-m", "seed=0,1", "launcher=pool"]
    process = start(*command, "launcher.runs_per_device=1")
    for line in process.stdout:
        if line.startswith("[1/2]"):
            (project / "own_scales.py").write_text(SCALES.replace("1.0", "nowhere"))
            break
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    codes = [result_of(folder)["code"] for folder in (tmp_path / "pool").glob("runs/*/seed*")]
    assert len(codes) == 2
    assert codes[0] == codes[1]
    assert list(codes[0]) == ["0"]
