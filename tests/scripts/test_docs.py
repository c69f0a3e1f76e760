"""README and docs/: their commands and examples run as they stand, their links and figures are there."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from deepnets.config.command_line import rows_of_command
from deepnets.models.layers import Layers
from deepnets.models.resize import ShortcutShape
from tests.photographs import photograph_tree

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "outputs" / "records"
# The commands of these pages take minutes.
LONG = ("analysis.md", "imagenet.md", "launchers.md", "networks.md", "performance.md", "sweeps.md")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLE = re.compile(r"(?:`([\w/.]+)`:\n\n)?```(\w+)\n(.*?)```", re.DOTALL)
SETUP = ("python3 -m venv", ".venv/bin/pip")  # the environment of this test was made so

# What a page's commands need from the pages before it.
BEFORE = {
    "launchers.md": ["python scripts/train.py sweep=digits_shortcuts model/shortcut=identity seed=0"],
    "run-folder.md": [
        "python scripts/train.py model.depth=14 epochs=5",
        "python scripts/train.py sweep=digits_shortcuts model/shortcut=identity seed=0",
    ],
    "verify.md": ["python scripts/train.py sweep=digits_shortcuts model/shortcut=identity seed=0"],
    "reports.md": ["python scripts/train.py sweep=digits_shortcuts model/shortcut=identity,none seed=0"],
    "analysis.md": [
        "python scripts/train.py sweep=digits_shortcuts model/shortcut=identity,exclusive_gating_b6 seed=0"
    ],
}

FEW_IMAGES = "dataset.incomplete=true"  # what the commands below find in DIR

# What is added to a command that would take hours, a cluster or an idle machine, and why.
ONE_ROW = "plan=true model.depth=8 model/shortcut=none seed=0"
SHALLOW = "model=highway_fc10 epochs=20"
TABLE_1 = "python scripts/train.py sweep=he2016_table1"
SEARCH = "python scripts/train.py sweep=srivastava2015_fig1_highway scale=mini"
CLUSTER = "a cluster; tests/launch/test_slurm.py submits to a SLURM of its own"
ADDED = {
    "python scripts/train.py sweep=he2015_table2 dataset.root=DIR model=imagenet_resnet18": (
        "plan=true dataset.root=PHOTOGRAPHS dataset.classes=4 batch_size=64",
        "600,000 iterations of ImageNet",
    ),
    f"{TABLE_1} dataset.root=DIR": (ONE_ROW, "80 runs of 64,000 iterations"),
    "python scripts/train.py protocol=he2016 model=preact110 dataset.root=DIR": (
        "plan=true model.depth=8",
        "64,000 iterations of 110 layers",
    ),
    f"{TABLE_1} scale=deep until=decided hours=8 dataset.root=DIR": (
        "plan=true model/shortcut=identity,none",
        "hours",
    ),
    f"{TABLE_1} scale=deep dataset.root=DIR threads=1": (ONE_ROW, "48 runs of six minutes"),
    f"{TABLE_1} dataset.root=DIR plan=true": (ONE_ROW, "a plan of 80 networks"),
    f"{TABLE_1} dataset.root=DIR launcher=slurm launcher.partition=gpu launcher.time=240": (ONE_ROW, CLUSTER),
    f"{TABLE_1} dataset.root=DIR launcher=slurm 'launcher.setup=[module load cuda]'": (ONE_ROW, CLUSTER),
    f"{TABLE_1} dataset.root=DIR launcher=slurm launcher.nodes=2 devices=16": (ONE_ROW, CLUSTER),
    f"{SEARCH} launcher.stacked=32 dataset.root=DIR": (f"{SHALLOW} setting=0,1", "networks of up to 100 layers"),
    "python scripts/train.py model.depth=110 memory=recompute_segments epochs=1": (
        "model.depth=20",
        "a minute of training",
    ),
    "python scripts/analyze.py gradients --output fresh --orderings original,full_preactivation "
    "model=preact110 dataset=digits": ("model.depth=20 --draws 1 --sizes 1,3", "110 layers"),
    "python scripts/analyze.py landscape outputs/digits_shortcuts/identity/seed0 "
    "outputs/digits_shortcuts/exclusive_gating_b6/seed0": ("--points 3", "1,250 evaluations"),
    "python scripts/analyze.py curvature outputs/digits_shortcuts/identity/seed0": (
        "--images 100 --eigenvalues 1 --draws 2",
        "hundreds of passes over 1,000 images",
    ),
    "python scripts/analyze.py shattering": (
        "--depths 2,4 --feedforward-depth 4 --resnet-depth 4 --draws 2",
        "networks of 50 layers, 20 of each",
    ),
    "python scripts/analyze.py showcase": ("--depths 4,8 --draws 1", "networks of 40 units"),
    "python scripts/bench.py training --root DIR --json figures.json": (
        "--iterations 2 --repeats 1 --peers none",
        "minutes of an idle machine",
    ),
    "tensorboard --logdir outputs/digits_shortcuts": ("--inspect", "a server, which does not end"),
}
# What is not run at all, and why.
NOT_RUN = {
    "python scripts/report.py outputs/digits_shortcuts --screenshots pictures": (
        "a browser; tests/results/test_screenshots.py has one"
    ),
    "python -m pytest -m gpu -n0": "a GPU",
    "python scripts/report.py outputs/he2016_table1 --status": CLUSTER,
    "python scripts/report.py outputs/he2016_table1": CLUSTER,
}


# README of the first public version had these two examples: what users wrote after them still works.
FORMER_SHORTCUT = """\
import torch
from deepnets.models.resize import ShortcutShape
from torch import Tensor, nn


class ReZero(nn.Module):
    \"\"\"y = x + a r with a learned a, 0 at first (Bachlechner et al. 2021).\"\"\"

    def __init__(self, *, start: float, ends: ShortcutShape) -> None:
        super().__init__()
        self.resize, self.a = ends.resized(), nn.Parameter(torch.tensor(start))

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        return self.resize(x) + self.a * r
"""
FORMER_DATA = """\
from pathlib import Path
import numpy as np
import torch
from deepnets.data.source import DataFiles, Source, Split


def arrays(root: Path) -> Source:
    \"\"\"Images (N, H, W, C) uint8 and labels (N,) in root/arrays.npz.\"\"\"

    def find() -> DataFiles:
        file = np.load(root / "arrays.npz")
        halves = [
            [torch.from_numpy(file[f"{half}_{what}"]) for what in ("images", "labels")] for half in ("train", "test")
        ]
        return DataFiles((len(halves[0][0]), len(halves[1][0])), lambda: (Split(*halves[0]), Split(*halves[1])))

    return Source("arrays", (1, 8, 8), tuple("0123456789"), find)
"""


def examples(page: Path) -> Iterator[tuple[str | None, str, str]]:
    """Each fenced block of the page: the file that the line before it names, if any, its language and its text."""
    for found in EXAMPLE.finditer(page.read_text()):
        yield found.groups()


def commands(page: Path) -> list[str]:
    """The commands of a page in their order, without comments after them."""
    lines = [line for _, language, text in examples(page) if language == "sh" for line in text.splitlines()]
    return [re.sub(r"\s+# .*", "", line) for line in lines]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The parts of a clone that commands use, with small data sets of digits in DIR."""
    for part in ("conf", "deepnets", "scripts"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "records").symlink_to(RECORDS)
    write_data(tmp_path / "DIR")
    photograph_tree(tmp_path / "PHOTOGRAPHS", classes=4, train=35, val=2)
    sbatch = tmp_path / "bin" / "sbatch"  # a plan asks only whether there is one
    sbatch.parent.mkdir()
    sbatch.write_text("#!/bin/sh\nexit 1\n")
    sbatch.chmod(0o755)
    return tmp_path


def write_data(data: Path) -> None:
    digits = load_digits()
    images, labels = (digits.images * 15).astype(np.uint8), digits.target
    for split, chosen in (("train", slice(0, 200)), ("test", slice(200, 260))):
        for number, (image, label) in enumerate(zip(images[chosen], labels[chosen], strict=True)):
            picture = Image.fromarray(image)
            for name, size, mode in (("cifar10", 32, "RGB"), ("mnist", 28, "L")):
                folder = data / name / split / str(label)
                folder.mkdir(parents=True, exist_ok=True)
                picture.convert(mode).resize((size, size)).save(folder / f"{number}.png")
    halves = {"train": slice(0, 1500), "test": slice(1500, None)}
    arrays = {f"{half}_images": images[part][..., None] for half, part in halves.items()}
    np.savez(data / "arrays.npz", **arrays, **{f"{half}_labels": labels[part] for half, part in halves.items()})


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[pytest.mark.nightly] * (page.name in LONG))
        for page in PAGES
        if commands(page)
    ],
)
def test_commands_and_examples_work_in_order(page: Path, clone: Path) -> None:
    python = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{python}:{os.environ['PATH']}:{clone / 'bin'}", "PYTHONPATH": str(clone)}

    def run(command: str) -> None:
        done = subprocess.run(command, shell=True, cwd=clone, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    for command in BEFORE.get(page.name, []):
        run(command)
    for file, language, text in examples(page):
        if file:
            (clone / file).write_text(text)
        elif language == "python":
            (clone / "example.py").write_text(text)
            run("python example.py")
        elif language == "sh":
            for line in text.splitlines():
                command = line.partition("  #")[0].rstrip()
                if not command.startswith(SETUP) and command not in NOT_RUN:
                    run(
                        " ".join(
                            [
                                command,
                                *ADDED.get(command, [])[:1],
                                *[FEW_IMAGES] * ("root=DIR" in command or "--root DIR" in command),
                            ]
                        )
                    )


def test_exceptions_are_of_commands_that_are_there() -> None:
    written = {command for page in PAGES for command in commands(page)}
    assert not {*ADDED, *NOT_RUN} - written
    assert not BEFORE.keys() - {page.name for page in PAGES}


def test_each_row_of_what_happens_when_names_a_test_that_is_there() -> None:
    rows = (ROOT / "docs" / "launchers.md").read_text().split("| what happens |")[1].split("\n\n")[0].splitlines()[2:]
    named = [re.search(r"<!-- (tests/\S+\.py)::(test_\w+) --> \|$", row) for row in rows]
    assert len(rows) >= 9
    assert all(found and f"def {found[2]}(" in (ROOT / found[1]).read_text() for found in named)


def test_every_block_is_run_written_to_a_file_or_shows_text() -> None:
    for page in PAGES:
        assert not re.search(r"^ {4}\S*(python|torchrun) ", EXAMPLE.sub("", page.read_text()), re.MULTILINE), page.name
        for file, language, text in examples(page):
            assert language in ("sh", "python", "text") or file, f"{page.name}: {text}"
            assert language != "text" or "python scripts/" not in text, (
                f"{page.name}: a command that is not run: {text}"
            )


def test_the_iteration_shown_is_that_of_fit() -> None:
    code = (ROOT / "deepnets" / "training" / "fit.py").read_text()
    shown = next(text for _, _, text in examples(ROOT / "docs" / "architecture.md") if "backward()" in text)
    lines = [line.partition("  #")[0].strip() for line in shown.splitlines()]
    assert re.search(r"\n\s+".join(map(re.escape, lines)), code)


def test_rows_of_tables_have_as_many_cells_as_their_headers() -> None:
    for page in PAGES:
        for table in re.findall(r"(?:^\|.*\|\n)+", EXAMPLE.sub("", page.read_text()), re.MULTILINE):
            assert len({line.count("|") - line.count(r"\|") for line in table.splitlines()}) == 1, (
                f"{page.name}: {table}"
            )


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if target.startswith("http"):
                continue
            file, _, place = target.partition("#")
            there = page.parent / file if file else page
            assert there.exists(), f"{page.name}: {target}"
            titles = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE) if place else []
            assert not place or place in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]


def test_readme_links_every_page_and_is_short() -> None:
    readme = PAGES[0].read_text()
    assert [page.name for page in PAGES[1:] if f"(docs/{page.name})" not in readme] == []
    assert len(readme.splitlines()) <= 150
    assert [page.name for page in PAGES[1:] if len(page.read_text().splitlines()) > 130] == []


def test_the_set_up_command_of_the_tests_is_what_continuous_integration_runs() -> None:
    setup = [command for command in commands(PAGES[0]) if command.startswith(SETUP)]
    assert len(setup) == 2
    assert setup[1] in (ROOT / ".ci" / "run").read_text().splitlines()


def module_of(text: str, folder: Path) -> ModuleType:
    file = folder / "module.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("module", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_shortcut_written_after_the_first_readme_works(tmp_path: Path) -> None:
    ends = ShortcutShape(4, 4, (), "zero_padding", (), Layers(conv_bias=False, batchnorm_images=None))
    shortcut = module_of(FORMER_SHORTCUT, tmp_path).ReZero(start=0.5, ends=ends)
    assert torch.equal(shortcut(torch.ones(1), torch.ones(1)), torch.tensor([1.5]))


def test_a_data_set_written_after_the_first_readme_works(tmp_path: Path) -> None:
    write_data(tmp_path)
    found = module_of(FORMER_DATA, tmp_path).arrays(tmp_path).found
    train, test = found.read()
    assert found.sizes == (len(train), len(test)) == (1500, 297)
    assert train.images.shape == (1500, 8, 8, 1)


def test_the_search_of_the_page_draws_the_same_values_for_all_rows_of_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sweep" / "search.yaml"
    file.parent.mkdir()
    file.write_text(next(text for _, _, text in examples(ROOT / "docs" / "sweeps.md") if "log_uniform" in text))
    words = ["sweep=search", "setting=range(8)", f"output_root={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["scripts/train.py", "--config-dir", str(tmp_path), *words])
    rows = [row.config for row in rows_of_command()]
    drawn = {(row.setting, row.optimizer["lr"], row.optimizer["weight_decay"]) for row in rows}
    assert len(rows) == 16
    assert sorted(setting for setting, _, _ in drawn) == [*range(8)]
    assert len({rate for _, rate, _ in drawn}) == 8
    assert all(1e-3 <= rate <= 1 for _, rate, _ in drawn)
    assert {decay for _, _, decay in drawn} == {0, 1e-4}
