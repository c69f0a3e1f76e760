"""A wheel holds conf/ and the commit it was built from; everything else of the build stands in pyproject.toml."""

import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConf(build_py):
    """The package with a copy of conf/; an editable installation reads the folder itself."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            package = Path(self.build_lib) / "deepnets"
            shutil.rmtree(package / "conf", ignore_errors=True)
            shutil.copytree("conf", package / "conf")
            describe = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
            if Path(".git").exists() and shutil.which("git"):
                (package / "conf" / "commit").write_text(subprocess.check_output(describe, text=True))


setup(cmdclass={"build_py": BuildWithConf})
