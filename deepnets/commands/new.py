"""Write a small project of your own: a shortcut, a data set, a sweep with a claim, a test and a README."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from deepnets.command import Parser
from deepnets.config.project import SCHEMAS
from deepnets.errors import UserError, printable

FILES = Path(__file__).parent / "project"  # templates *.in; NAME in them is the project's name
UNTRACKED = ("/data/", "/outputs/", "/weights/", "__pycache__/")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the project that `argv` (None: the command line) names.

    Raises:
        UserError: the folder exists already, or Python cannot import its name.
    """
    parser = Parser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a new folder; its name is the project's")
    folder = parser.parse_args(argv).folder
    if not folder.name.isidentifier():
        raise UserError(f"{folder}: the name must be one that Python can import, such as my_project")
    if folder.exists():
        raise UserError(f"{folder}: is there already; choose another name")
    for template in FILES.rglob("*.in"):
        file = folder / str(template.relative_to(FILES).with_suffix("")).replace("NAME", folder.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(template.read_text().replace("NAME", folder.name))
    (folder / ".gitignore").write_text("".join(f"{name}\n" for name in UNTRACKED))
    shutil.copytree(SCHEMAS, folder / "conf" / SCHEMAS.name)
    print(printable(f"project      {folder}; {folder}/README.md has its commands"))
    return 0
