"""The grading room's commands: python -m grading COMMAND."""

import importlib
import importlib.util
import sys

from common.errors import UserError

COMMANDS = {  # name -> (module, what it does)
    "grade": ("classroom", "grade a folder of submissions"),
    "pack": ("pack", "make the archive to hand in, and rehearse it"),
    "gradescope": ("gradescope", "make the autograder for Gradescope"),
    "handout": ("handout", "make the students' repository from this one"),
}


def available():
    """The commands whose modules are there: the students' handout has few of them."""
    return {
        name: (f"grading.{module}", does)
        for name, (module, does) in COMMANDS.items()
        if importlib.util.find_spec(f"grading.{module}")
    }


def main(argv):
    """Run a command; returns the exit code: 2 for a mistake of the user's, 130 for Ctrl-C."""
    commands = available()
    usage = "usage: python -m grading COMMAND ... (--help after a command tells its options)\n"
    usage += "".join(f"  {name:<12}{does}\n" for name, (_, does) in commands.items())
    if argv[:1] in (["-h"], ["--help"]):
        print(usage, end="")
        return 0
    if not argv or argv[0] not in commands:
        said = f"there is no command {argv[0]!r}" if argv else "name a command"
        print(f"grading: {said}\n{usage}", end="", file=sys.stderr)
        return 2
    module, _ = commands[argv[0]]
    try:
        return importlib.import_module(module).main(argv[1:])
    except UserError as error:
        print(f"grading {argv[0]}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"grading {argv[0]}: interrupted; what is finished is kept", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
