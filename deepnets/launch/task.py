"""Writes the script of a task of SLURM and the copy of deepnets that it executes, and executes several runs in a task.

`python -m deepnets.launch.task` executes several runs: it imports once, and each run's output goes to the run's own
file. The task executes a copy of deepnets' own code beside the runs, even if the clone changes meanwhile. An installed
wheel and other packages are not copied: the task uses the versions that are installed when it starts.
"""

import argparse
import hashlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from deepnets.distributed.signals import Interrupted, Interruption, block_signals
from deepnets.system import begin

if __name__ == "__main__":
    begin()
    block_signals()  # importing torch takes seconds; a signal meanwhile waits for `main`

from deepnets.command import add_code_options, run_command
from deepnets.config.project import CONF, INSTALLED, PACKAGE, git_commit
from deepnets.config.schema import CodeChoice
from deepnets.config.trust import trusted
from deepnets.errors import UserError, printable
from deepnets.launch.grid import OUTPUT
from deepnets.runs.code import FOLDER
from deepnets.runs.execute import LOCKED, run
from deepnets.runs.folder import Locked, RunFolder
from deepnets.runs.log import PROTOCOLS
from deepnets.runs.record import describe_result
from deepnets.system.files import BYTE_CODE, cache_folder, opened_to_append, write_atomically, write_folder
from deepnets.system.printing import print_error

ROWS = ".rows"  # beside the script of an array: a line "TASK FOLDER" for each of its runs
LEFT = ".left"  # beside the script, named after a task: the folders of its unfinished runs; the first is executing
FAILED = "failed"  # beside the script: with fail_fast, this file exists after a failure, and then no other run starts
ARRAYS = "arrays"  # beside the script: the numbers of all arrays of the submission
SUMS = "SHA256SUMS"  # in the form that the command sha256sum writes and checks

# SLURM sends its warning only to this shell (--signal=B:). It sends the SIGTERM that ends a job to this shell and, on
# some clusters, to all processes below. The shell passes both signals on; if one interrupts its `wait`, it waits again.
# Exit code 138 is 128 + SIGUSR1: the run is saved, because its time limit is near. Any other code belongs to the first
# run in the list `left`; the shell then starts the process again for the others, and writes a result for a run that
# could not even start. A killed run has not failed, so the next command submits it again. A run that ends with the
# code LOCKED has not failed either: another process executes it.
BODY = """
task=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID
todo={directory}/$task{left}
if [ ! -e "$todo" ]; then
    sed -n "s/^$SLURM_ARRAY_TASK_ID //p" {rows} >"$todo.new" && mv "$todo.new" "$todo"
fi
mapfile -t left <"$todo" || exit 1
echo "$(date -Iseconds) $task on $(hostname): ${{#left[@]}} to execute"
signal= ending= child= step=-1 worst=$(cat "$todo.code" 2>/dev/null || echo 0)
pass_on() {{
    signal=$1
    [ "$1" != TERM ] || ending=yes
    [ -z "$child" ] || {kill} 2>/dev/null
}}
fail() {{  # FOLDER REASON
    [ -e "$1/result.json" ] || flock --nonblock "$1/.lock" bash -c 'echo "$2" >"$1/result.json"' note "$1" \\
        '{{"status": "failed", "job": "'"$task"'", "reason": "'"$2"'"}}'
    {on_failure}
}}
trap 'pass_on USR1' USR1
trap 'pass_on TERM' TERM
for row in "${{left[@]}}"; do
    for file in {output} result.json; do  # a link would be followed
        [ ! -L "$row/$file" ] || rm "$row/$file"
    done
done
{code}{setup}if [ -n "${{SLURM_CPUS_PER_TASK:-}}" ]; then
    export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
fi
while mapfile -t left <"$todo" && [ ${{#left[@]}} -gt 0 ] && [ -z "$ending" ] && [ ! -e {failed} ]; do
    row=${{left[0]}} step=$((step + 1))
    {run} >>"$row"/{output} 2>&1 &
    child=$!
    [ -z "$signal" ] || pass_on "$signal"
    while signal=; wait "$child"; code=$?; [ -n "$signal" ]; do :; done
    child=
    [ "$code" -eq 0 ] || row=$(head -n 1 "$todo")
    echo "$(date -Iseconds) $task: exit code $code: $row"
    if [ "$code" -eq 138 ]; then
        scontrol requeue "$task" && exit 0
        exit "$code"
    fi
    [ "$code" -eq 0 ] || worst=$code
    [ -z "$ending" ] || [ "$code" -lt 128 ] || break  # it is saved, and goes on if the task is queued again
    [ "$worst" -eq 0 ] || echo "$worst" >"$todo.code"  # also for when the task is queued again
    if [ "$code" -ge 1 ] && [ "$code" -lt 128 ] && [ "$code" -ne {locked} ]; then
        fail "$row" "exit code $code; see {output}"
    fi
    {unless_noted}sed -i 1d "$todo" || exit 1
done
[ -n "$ending" ] || rm -f "$todo" "$todo.code"
exit "$worst"
"""
SETUP = """broken() {{  # EXIT-CODE
    echo "launcher.setup ended with exit code $1"
    for row in "${{left[@]}}"; do
        fail "$row" "launcher.setup ended with exit code $1; see slurm/$SLURM_ARRAY_JOB_ID/$task.out"
    done
    exit 1
}}
{lines}
"""
FAIL_FAST = """: >{failed}
    scancel --state=PENDING "$SLURM_ARRAY_JOB_ID" $(cat {arrays})"""
KILL = 'kill "-$1" "$child"'
# srun, the last step of the job, passes SIGUSR1 on, but on SIGTERM it kills its processes.
KILL_RANKS = '{ [ "$1" = TERM ] && scancel --signal=TERM "$SLURM_JOB_ID.$step" || kill "-$1" "$child"; }'
# srun starts one process per device, as torchrun would, but SLURM's signals reach each process directly. When one has
# ended, the others have a minute to end by themselves: one of them may be saving.
PORT = "export MASTER_ADDR=$(hostname) MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))"
RANK = 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS; exec "$@"'
RANKS = f"srun --kill-on-bad-exit=0 --wait=60 bash -c {shlex.quote(RANK)} rank "


def batch_script(
    directives: Sequence[str],
    directory: Path,
    array: str,
    *,
    copy: Path | None = None,
    setup: Sequence[str] = (),
    several_nodes: bool = False,
    several_runs: bool = False,
    fail_fast: bool = False,
) -> str:
    """Return the script of an array; the file `array` + `ROWS` in `directory` lists the run folders of each task.

    If a run saves because its time limit is near, its task is queued again. Otherwise the task exits with the code
    of the last run that did not exit with 0, or with 0. The tasks execute the `copy` of deepnets that `snapshot` made,
    and the copies of the user's code that the runs note.

    Raises:
        UserError: a directive has a line break; the text after it would become a command of the script.
    """
    if broken := [word for word in (*directives, str(directory)) if "\n" in word]:
        raise UserError(f"launcher=slurm: {broken[0]!r}: a line break cannot be part of it")
    quoted = {name: shlex.quote(str(directory / name)) for name in (array + ROWS, FAILED, ARRAYS)}
    steps = [PORT] if several_nodes else []
    steps += [f'eval {shlex.quote(line)} || broken "$?"' for line in setup]
    is_shared = several_runs and not several_nodes
    body = BODY.format(
        directory=shlex.quote(str(directory)),
        left=LEFT,
        rows=quoted[array + ROWS],
        failed=quoted[FAILED],
        code=verifying_lines(copy),
        setup=SETUP.format(lines="\n".join(steps)) if steps else "",
        run=command_of_task(is_shared, quoted[FAILED], RANKS if several_nodes else ""),
        kill=KILL_RANKS if several_nodes else KILL,
        unless_noted='[ "$code" -eq 0 ] || ' if is_shared else "",
        output=OUTPUT,
        locked=LOCKED,
        on_failure=FAIL_FAST.format(failed=quoted[FAILED], arrays=quoted[ARRAYS]) if fail_fast else ":",
    )
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {shlex.quote(directive)}" for directive in directives), body])


def snapshot(sweep: Path) -> Path | None:
    """Copy the package and conf/ into `sweep`/.code unless that copy exists; returns None for an installed wheel.

    The copy has the layout of a wheel and notes the commit of the clone. A job that executes a copy and submits another
    job passes the same copy on.
    """
    if (PACKAGE.parent / SUMS).is_file():
        return PACKAGE.parent
    if INSTALLED:
        return None
    contents = _package()
    contents |= {Path("deepnets/conf") / file.relative_to(CONF): file.read_bytes() for file in _files(CONF)}
    contents[Path("deepnets/conf/commit")] = (git_commit() or "").encode()
    sums = _sums(contents).encode()
    copy = sweep / FOLDER / f"deepnets-{hashlib.sha256(sums).hexdigest()[:16]}"
    if not (copy / SUMS).is_file():
        write_folder(copy, contents | {Path(SUMS): sums})
    return copy


def changed_since(script: Path) -> list[str]:
    """Return the files of the package that have changed since the array with this script was submitted.

    YAML does not count, because a submitted run is frozen; nor do files that are gone with the array's copy.
    """
    words = [line.removeprefix("code=") for line in script.read_text().splitlines() if line.startswith("code=")]
    if INSTALLED or not words or not (sums := Path(*shlex.split(words[0])) / SUMS).is_file():
        return []
    then = {line for line in sums.read_text().splitlines() if not line.partition("  ")[2].startswith("deepnets/conf/")}
    return sorted({line.partition("  ")[2] for line in then ^ {*_sums(_package()).splitlines()}})


def verifying_lines(copy: Path | None) -> str:
    """Return the lines of a task's script that verify the files of the copy and let Python import it.

    If a file has changed, they call `fail` for each run in the script's list `left`. They make Python search the
    working directory last, and read no byte code from the copy, because no checksum covers byte code.
    """
    if copy is None:
        return ""
    folder, sums = shlex.quote(str(copy.absolute())), hashlib.sha256((copy / SUMS).read_bytes()).hexdigest()
    return f"""code={folder}
if ! (cd "$code" && echo {sums}  {SUMS} | sha256sum --check --quiet && sha256sum --check --quiet {SUMS}); then
    for row in "${{left[@]}}"; do
        fail "$row" "the copy of deepnets in {FOLDER}/{copy.name} has changed since the job was submitted"
    done
    exit 1
fi
export PYTHONPATH=$code${{PYTHONPATH:+:$PYTHONPATH}}:$PWD PYTHONSAFEPATH=1
export PYTHONPYCACHEPREFIX={shlex.quote(str(cache_folder() / BYTE_CODE))}
"""


def command_of_task(is_shared: bool, failed: str, ranks: str = "") -> str:
    """Return the shell command that executes the run `$row`, or if `is_shared` all runs in `$todo` in one process."""
    trust = [*(shlex.quote(f"--trust={name}") for name in trusted()), f"--code={CodeChoice.frozen}"]
    words = ["deepnets.launch.task", '"$todo"', failed] if is_shared else ["deepnets.run", '"$row"']
    return ranks + " ".join([shlex.join([sys.executable, "-m"]), *words, *trust])


def main() -> int:
    """Execute the runs of a task one after the other, and remove each from the file `left` unless it fails.

    The process ends when no run is left, when the file `failed` exists, or with the first failure: a failed run may
    leave something on a GPU that makes the next run fail too.
    """
    parser = argparse.ArgumentParser(description="Execute the runs of a task of SLURM.")
    parser.add_argument("left", type=Path, help="a file with a run folder in each line")
    parser.add_argument("failed", type=Path, help="a file; no run starts if it exists")
    add_code_options(parser)
    arguments = parser.parse_args()
    with Interruption() as interruption:
        while (rows := arguments.left.read_text().splitlines()) and not arguments.failed.exists():
            block_signals()  # until the run can save its state, so that none comes in between and is only noted here
            if interruption.received:
                raise Interrupted(interruption.received)
            folder = RunFolder(rows[0])
            _print_into(folder.path / OUTPUT)
            try:
                print(printable(f"{folder}: {describe_result(run(folder))}"), flush=True)
            except Locked as error:
                print_error(f"error: {error}")
            except Interrupted:
                if not folder.is_complete or rows[1:]:
                    raise
            write_atomically(arguments.left, "".join(f"{row}\n" for row in rows[1:]))
    return 0


def _package() -> dict[Path, bytes]:
    return {file.relative_to(PACKAGE.parent): file.read_bytes() for file in _files(PACKAGE)}


def _sums(contents: Mapping[Path, bytes]) -> str:
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(contents.items()))


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts]


def _print_into(file: Path) -> None:
    """Append the output of this process and of its children to the file."""
    sys.stdout.flush()
    sys.stderr.flush()
    PROTOCOLS.clear()
    with opened_to_append(file) as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)


if __name__ == "__main__":
    run_command(main)
