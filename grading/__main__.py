"""What students run to hand in their work: python -m grading COMMAND."""

import sys

from common.commands import run_command

COMMANDS = {  # name -> (module, what it does)
    "carry": ("grading.hand_in.carry", "copy what you wrote to the later tasks' scripts"),
    "pack": ("grading.pack", "make the archive to hand in, and rehearse it"),
}
MOVED = {name: f"python -m staff {name}" for name in ("grade", "gradescope", "handout")}


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    return run_command("grading", COMMANDS, MOVED, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
