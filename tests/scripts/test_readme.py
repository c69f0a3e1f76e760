"""README's commands and examples, word for word, in a copy of the clone."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
SETUP = [
    line
    for language, text in BLOCK.findall(README)
    for line in text.splitlines()
    if line.startswith(("python3 -m venv", ".venv"))
]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    clone = tmp_path_factory.mktemp("clone")
    for part in ("conf", "deepnets", "scripts"):
        shutil.copytree(ROOT / part, clone / part, ignore=shutil.ignore_patterns("__pycache__"))
    data = clone / "DIR"
    digits = load_digits()
    images, labels = (digits.images * 15).astype(np.uint8), digits.target
    for split, chosen in (("train", slice(0, 200)), ("test", slice(200, 260))):
        for number, (image, label) in enumerate(zip(images[chosen], labels[chosen], strict=True)):
            folder = data / "cifar10" / split / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).convert("RGB").resize((32, 32)).save(folder / f"{number}.png")
    split = {"train": slice(0, 1500), "test": slice(1500, None)}
    arrays = {f"{half}_images": images[part][..., None] for half, part in split.items()}
    np.savez(data / "arrays.npz", **arrays, **{f"{half}_labels": labels[part] for half, part in split.items()})
    return clone


def test_every_command_and_example_works_in_order(clone: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(clone),
    }
    ran = 0
    for found in re.finditer(r"(?:`([\w/.]+)`:\n\n)?" + BLOCK.pattern, README, re.DOTALL):
        file, language, text = found.groups()
        if file:
            (clone / file).write_text(text)
        elif language == "python":
            subprocess.run([sys.executable, "-c", text], cwd=clone, env=environment, check=True)
        elif language == "sh":
            for command in text.splitlines():
                if command in SETUP:
                    continue
                done = subprocess.run(command, shell=True, cwd=clone, env=environment, capture_output=True, text=True)
                assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
                ran += 1
    assert ran == 14  # if README gains a command, count it here
    folders = {str(path.parent.relative_to(clone / "outputs")) for path in clone.glob("outputs/*/*/*/result.json")}
    assert "runs/resnet20,cifar10,epochs=5/seed0" in folders
    assert "my_table/full_preactivation/seed1" in folders
    assert "digits_shortcuts/identity/seed0" in folders
    assert "runs/digits_resnet,digits,devices=2,epochs=5,model.depth=14/seed0" in folders
    assert "digits_shortcuts/none/seed1" in folders
    assert (clone / "outputs/digits_shortcuts/report/report.html").is_file()
    assert (clone / "outputs/digits_shortcuts/identity/seed0/analysis/lesion_single.png").is_file()


def test_the_test_command_is_what_continuous_integration_runs() -> None:
    assert len(SETUP) == 2
    assert SETUP[1] in (ROOT / ".ci" / "run").read_text().splitlines()
