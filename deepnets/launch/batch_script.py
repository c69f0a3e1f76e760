"""The script of a SLURM job: the run folder's command, and what becomes of its exit code."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from deepnets.errors import UserError
from deepnets.launch.child import OUTPUT
from deepnets.runs.execute import LOCKED

# SLURM's warning goes to this shell alone (--signal=B:), the SIGTERM that ends a job to this shell and on some clusters
# to all below it. Both are passed on, and a wait that a signal broke off is taken up again. Exit code 138 is
# 128 + SIGUSR1: the run is saved and its time limit is near. A command that could not even start leaves no word of its
# own; what was killed is no failure, and is submitted again. Nor is 75: another process is running the folder.
BODY = """
mapfile -t rows <{rows}
row=${{rows[SLURM_ARRAY_TASK_ID]}}
task=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID
echo "$(date -Iseconds) $task on $(hostname): $row"
signal= child=
pass_on() {{
    signal=$1
    [ -z "$child" ] || {kill} 2>/dev/null
}}
for file in {output} result.json; do  # a link would be followed
    [ ! -L "$row/$file" ] || rm "$row/$file"
done
if [ -n "${{SLURM_CPUS_PER_TASK:-}}" ]; then
    export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
fi
trap 'pass_on USR1' USR1
trap 'pass_on TERM' TERM
{run} >>"$row"/{output} 2>&1 &
child=$!
[ -z "$signal" ] || pass_on "$signal"
while signal=; wait "$child"; code=$?; [ -n "$signal" ]; do :; done
child=
echo "$(date -Iseconds) $task: exit code $code"
if [ "$code" -eq 138 ]; then
    scontrol requeue "$task" && exit 0
elif [ "$code" -ge 1 ] && [ "$code" -lt 128 ] && [ "$code" -ne {locked} ] && [ ! -e "$row/result.json" ]; then
    flock --nonblock "$row/.lock" bash -c 'echo "$2" >"$1/result.json"' note "$row" \\
        '{{"status": "failed", "job": "'"$task"'", "reason": "exit code '"$code"'; see {output}"}}'
fi
{on_failure}exit "$code"
"""
FAIL_FAST = """if [ "$code" -ge 1 ] && [ "$code" -lt 128 ] && [ "$code" -ne {locked} ]; then
    scancel --state=PENDING "$SLURM_ARRAY_JOB_ID"
fi
"""
# A process per device, as torchrun starts them, but each a task of SLURM's own, which signals reach directly. One that
# has ended leaves the others a minute to end by themselves: one of them may be saving.
KILL = 'kill "-$1" "$child"'
# srun passes SIGUSR1 on, but on SIGTERM it kills what it has started; of the job's steps it is the first.
KILL_RANKS = '{ [ "$1" = TERM ] && scancel --signal=TERM "$SLURM_JOB_ID.0" || kill "-$1" "$child"; }'
RANKS = """export MASTER_ADDR=$(hostname) MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))
rank='export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS; exec "$@"'
srun --kill-on-bad-exit=0 --wait=60 bash -c "$rank" rank """


def batch_script(
    directives: Sequence[str], rows: Path, trusted: Sequence[str], *, several_nodes: bool, fail_fast: bool
) -> str:
    """The script of an array whose task i executes the folder in line i of the file `rows`.

    A run that saved because its limit is near is queued again; any other exit code becomes the task's.

    Raises:
        UserError: a line break, behind which a directive would be a command of the script.
    """
    if broken := [word for word in (*directives, str(rows)) if "\n" in word]:
        raise UserError(f"launcher=slurm: {broken[0]!r}: a line break cannot be part of it")
    trust = [f"--trust={target}" for target in trusted]
    run = " ".join([shlex.join([sys.executable, "-m", "deepnets.run"]), '"$row"', *map(shlex.quote, trust)])
    body = BODY.format(
        rows=shlex.quote(str(rows)),
        run=RANKS + run if several_nodes else run,
        kill=KILL_RANKS if several_nodes else KILL,
        output=OUTPUT,
        locked=LOCKED,
        on_failure=FAIL_FAST.format(locked=LOCKED) if fail_fast else "",
    )
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {shlex.quote(directive)}" for directive in directives), body])
