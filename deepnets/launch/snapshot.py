"""Copies deepnets' own code beside the runs of a sweep: a queued job executes the copy, even if the clone changes.

It does not copy an installed wheel or other packages: the job uses the versions that are there when it starts.
"""

import hashlib
import shlex
from pathlib import Path

from deepnets.config.project import CONF, INSTALLED, PACKAGE, git_commit
from deepnets.runs.code import FOLDER, write_copy
from deepnets.system.files import BYTE_CODE, cache_folder

SUMS = "SHA256SUMS"  # in the form that the command sha256sum writes and checks


def snapshot(sweep: Path) -> Path | None:
    """Copy the package and conf/ into `sweep`/.code unless that copy exists; returns None for an installed wheel.

    The copy has the layout of a wheel and notes the commit of the clone. If a job that executes a copy submits another
    job, that one gets the same copy.
    """
    if (PACKAGE.parent / SUMS).is_file():
        return PACKAGE.parent
    if INSTALLED:
        return None
    contents = {file.relative_to(PACKAGE.parent): file.read_bytes() for file in _files(PACKAGE)}
    contents |= {Path("deepnets/conf") / file.relative_to(CONF): file.read_bytes() for file in _files(CONF)}
    contents[Path("deepnets/conf/commit")] = (git_commit() or "").encode()
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(contents.items())]
    sums = "".join(lines).encode()
    copy = sweep / FOLDER / f"deepnets-{hashlib.sha256(sums).hexdigest()[:16]}"
    if not (copy / SUMS).is_file():
        write_copy(copy, contents | {Path(SUMS): sums})
    return copy


def verifying_lines(copy: Path | None) -> str:
    """Return the lines of a task's script that verify the files of the copy and let Python import it.

    If a file has changed, they call `fail` for each run in the script's list `left`. Python searches the working
    directory last, and reads no byte code from the copy, because no checksum covers that.
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


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
