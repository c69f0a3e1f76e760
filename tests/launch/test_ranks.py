"""What each process of a run finds in its environment, on two nodes of two GPUs: on paper, as no GPU is needed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from deepnets.distributed.world import STORE, World, world_from_env
from deepnets.launch.slurm import Slurm
from deepnets.launch.task import ROWS, batch_script
from deepnets.training import hardware
from tests.command import ROOT, row
from tests.launch.test_slurm import OPTIONS
from tests.slurm import free_port

Start = Callable[[Path, pytest.MonkeyPatch], list[dict[str, str]]]
# The program of a process: it writes its environment into a folder.
TELLS = f"""#!{sys.executable} -S
import json, os, pathlib
pathlib.Path({{0!r}}, os.environ["RANK"]).write_text(json.dumps(dict(os.environ)))
"""
# What srun gives the processes of `--nodes=2 --ntasks-per-node=2`, here one after the other.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for rank in 0 1 2 3; do
    SLURM_PROCID=$rank SLURM_LOCALID=$((rank % 2)) SLURM_NTASKS=4 CUDA_VISIBLE_DEVICES=0,1 "$@" || exit
done
"""


def program(file: Path, text: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
    return file


def told(folder: Path) -> list[dict[str, str]]:
    return [json.loads((folder / str(rank)).read_text()) for rank in range(4)]


def by_slurm(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The script that two nodes would execute, executed by bash."""
    folder = root / "run"
    folder.mkdir()
    (directory := root / "sweep" / ".slurm" / "1").mkdir(parents=True)
    slurm = Slurm(**{**OPTIONS, "nodes": 2, "cpus": 6})
    asked = slurm.directives(directory, 1, row(root, "devices=4", "device=cuda").config)
    expected = {"--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2", "--cpus-per-task=6", "--array=0-0"}
    assert expected < set(asked)
    monkeypatch.setattr(sys, "executable", str(program(root / "bin" / "tells", TELLS.format(str(root / "told")))))
    script = batch_script(asked, directory, "0", several_nodes=True)
    (directory / f"0{ROWS}").write_text(f"0 {folder}\n")
    program(root / "bin" / "srun", SRUN)
    of_job = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0", "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "6"}
    environment = {**os.environ, **of_job, "PATH": f"{root / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(["bash"], input=script, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "output.txt").read_text() == ""
    return told(root / "told")


def by_torchrun(root: Path, _: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Two agents, as on two nodes, start two processes each."""
    tells = program(root / "bin" / "tells", TELLS.format(str(root / "told")))
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--no-python"]
    words += ["--master-addr=localhost", f"--master-port={free_port()}"]
    agents = [subprocess.Popen([*words, f"--node-rank={node}", tells], cwd=ROOT) for node in range(2)]
    assert [agent.wait(300) for agent in agents] == [0, 0]
    return told(root / "told")


@pytest.mark.parametrize(
    ("start", "threads"),
    [(by_slurm, "6"), pytest.param(by_torchrun, "1", marks=pytest.mark.slow)],  # torchrun's own, if none is given
    ids=["slurm", "torchrun"],
)
def test_four_processes_on_two_nodes_find_their_ranks_threads_and_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start, threads: str
) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS", STORE):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "told").mkdir()
    environments = start(tmp_path, monkeypatch)
    assert len({(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in environments}) == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for rank, environment in enumerate(environments):
        with monkeypatch.context() as patch:
            for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
                patch.setenv(name, environment[name])
            assert world_from_env() == World(rank, 4, rank % 2)
            assert hardware.device_of_process("cuda", rank % 2) == torch.device("cuda", rank % 2)
        assert environment["OMP_NUM_THREADS"] == threads
        # A file or the loopback would not reach the other node; gloo and NCCL find the interface themselves.
        assert not {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", STORE} & environment.keys()
