"""What graders and instructors run: python -m staff COMMAND."""

import sys

from common.commands import run_command

COMMANDS = {  # name -> (module, what it does)
    "grade": ("staff.classroom.grade", "grade a folder of submissions"),
    "export": ("staff.classroom.export", "write grades for Canvas or Gradescope"),
    "gradescope": ("staff.classroom.gradescope", "make the autograder for Gradescope"),
    "handout": ("staff.handout.build", "make the students' repository from this one"),
    "deck": ("staff.deck.deck", "write the slides for a lecture"),
    "sheet": ("staff.sheet.sheet", "write the assignment's sheet, with dates and points"),
    "timings": ("staff.timing.timings", "compare the times of many runs"),
}
MOVED = {name: f"python -m grading {name}" for name in ("pack", "carry")}


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    return run_command("staff", COMMANDS, MOVED, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
