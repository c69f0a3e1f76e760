"""The installed program `deepnets VERB`. A clone also has scripts for train, report, analyze, predict and bench."""

import sys
from importlib import import_module
from importlib.metadata import version

from deepnets.config.project import git_commit
from deepnets.errors import nearest, printable
from deepnets.system import begin

VERBS = {
    "train": "train one run or a sweep",
    "report": "show results beside the published numbers",
    "analyze": "measure why depth works",
    "bench": "measure deepnets on this machine",
    "predict": "classify image files with a trained run",
    "export": "write a run's weights for other programs",
    "clean": "remove files that nobody needs from run folders",
    "new": "write a small project of your own",
}
HELP = "usage: deepnets VERB ...\n\n" + "".join(f"  {verb:<8} {summary}\n" for verb, summary in VERBS.items())


def main() -> int:
    """Run the verb that the first argument names, and pass the other arguments to it."""
    verb, *arguments = sys.argv[1:] or ["--help"]
    if verb in ("-h", "--help"):
        print(f"{HELP}\ndeepnets VERB --help explains a verb; deepnets --version prints the version.")
        return 0
    if verb == "--version":
        print(f"deepnets {version('deepnets')}, commit {git_commit() or 'unknown'}")
        return 0
    if verb not in VERBS:
        print(printable(f"{HELP}\nerror: {verb}: no such verb{nearest(verb, VERBS)}"), file=sys.stderr)
        return 2
    sys.argv = [f"deepnets {verb}", *arguments]
    return import_module(f"deepnets.commands.{verb}").main()


def command() -> None:
    """Run the installed program `deepnets`."""
    begin()
    import_module("deepnets.command").run_command(main)


if __name__ == "__main__":
    command()
