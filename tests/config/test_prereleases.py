"""Rows are the same with the pre-releases of the next Hydra and OmegaConf, which are installed beside the others.

What keeps pyproject.toml at Hydra 1.3 and OmegaConf 2.3: Hydra 1.4 is a release candidate and needs one of OmegaConf
2.4, and both print deprecations of calls that 1.3 and 2.3 need.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PRERELEASES = ("hydra-core>=1.4.0rc3,<1.5", "omegaconf>=2.4.0,<2.5")
ELSE_THERE = "~model.batchnorm_images model=resnet20"  # Hydra 1.3 cannot delete a key whose value is null
REPOSITORY = Path(__file__).parents[2]


@pytest.mark.nightly
def test_commands_have_the_same_rows_with_the_next_hydra(tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--pre", "--no-deps", "--target", str(tmp_path)]
    installed = subprocess.run([*install, *PRERELEASES], capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"pip cannot install them here: {installed.stderr.strip().splitlines()[-1]}")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])}
    golden = "tests/config/test_golden.py"
    without = ["--deselect", f"{golden}::test_a_command_has_the_rows_it_had[{ELSE_THERE}]"]
    tests = ["-m", "pytest", "-n0", "-m", "not slow and not nightly", *without, golden]
    version = "import hydra, omegaconf; print(hydra.__version__, omegaconf.__version__)"
    found = subprocess.run([sys.executable, "-c", version], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.startswith("1.4")
    done = subprocess.run([sys.executable, *tests], env=environment, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
