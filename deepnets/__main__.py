"""`deepnets VERB` does what the scripts of a clone do, wherever deepnets is installed."""

import sys
from importlib import import_module
from importlib.metadata import version

from deepnets.config.project import git_commit
from deepnets.errors import printable
from deepnets.system import begin

VERBS = {
    "train": "train one run or a sweep",
    "report": "set results beside the published numbers",
    "analyze": "measure why depth works",
    "bench": "measure deepnets on this machine",
    "predict": "name the classes of images by a trained run",
    "export": "write a run's weights for other programs",
    "clean": "remove what nobody needs from the folders of runs",
    "new": "write a small project of your own",
}
HELP = "usage: deepnets VERB ...\n\n" + "".join(f"  {verb:<8} {what}\n" for verb, what in VERBS.items())


def main() -> int:
    """Run the verb, which is the first argument, and hand it the other arguments."""
    verb, *arguments = sys.argv[1:] or ["--help"]
    if verb in ("-h", "--help"):
        print(f"{HELP}\ndeepnets VERB --help says more, deepnets --version which version this is.")
        return 0
    if verb == "--version":
        print(f"deepnets {version('deepnets')}, commit {git_commit() or 'unknown'}")
        return 0
    if verb not in VERBS:
        print(printable(f"{HELP}\nerror: {verb}: no such verb"), file=sys.stderr)
        return 2
    sys.argv = [f"deepnets {verb}", *arguments]
    return import_module(f"deepnets.commands.{verb}").main()


def command() -> None:
    """Run the installed program `deepnets`."""
    begin()
    import_module("deepnets.command").run_command(main)


if __name__ == "__main__":
    command()
