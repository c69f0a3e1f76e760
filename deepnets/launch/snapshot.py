"""Copies deepnets' own code beside the runs of a sweep: a queued job executes the copy, even if the clone changes.

An installed wheel and the environment's packages are not copied: the job uses those that it finds when it starts.
"""

import hashlib
import shlex
from pathlib import Path

from deepnets.config.project import CONF, INSTALLED, PACKAGE, git_commit
from deepnets.runs.code import FOLDER, write_copy
from deepnets.system.files import BYTE_CODE, cache_folder

SUMS = "SHA256SUMS"  # in the form that the command sha256sum writes and checks


def snapshot(sweep: Path) -> Path | None:
    """Copy the package with conf/ into `sweep`/.code, once for each content; returns None for an installed wheel.

    The copy has the layout of a wheel and notes the commit of the clone. A job that submits other jobs passes on the
    copy that it executes.
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


def lines_of(copy: Path | None) -> str:
    """Return the lines of a task's script that verify the files of the copy and let Python import it.

    If a file has changed, all runs in the script's list `left` `fail`. Python searches the working directory last. It
    reads no byte code from the copy, because no checksum covers that.
    """
    if copy is None:
        return ""
    folder, sums = shlex.quote(str(copy.absolute())), hashlib.sha256((copy / SUMS).read_bytes()).hexdigest()
    return f"""code={folder}
if ! (cd "$code" && echo {sums}  {SUMS} | sha256sum --check --quiet && sha256sum --check --quiet {SUMS}); then
    for row in "${{left[@]}}"; do
        fail "$row" "the copy of deepnets in {FOLDER}/{copy.name} is not as it was when the job was submitted"
    done
    exit 1
fi
export PYTHONPATH=$code${{PYTHONPATH:+:$PYTHONPATH}}:$PWD PYTHONSAFEPATH=1
export PYTHONPYCACHEPREFIX={shlex.quote(str(cache_folder() / BYTE_CODE))}
"""


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
