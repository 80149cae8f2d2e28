"""What of this repository students are given: a table with reasons, and what changes on the way."""

import fnmatch
import subprocess
from pathlib import Path

PACKING = (
    "__init__.py",
    "__main__.py",
    "pack.py",
    "archive.py",
    "junk.py",
    "members.py",
    "output.py",
)
CHECKING = (
    *("probe.py", "worker.py", "preload.py", "sandbox.py", "isolation.py", "sketch.py"),
    *("material.py", "session.py", "commands.py", "reader.py", "observation.py"),
    *("evidence.py", "ending.py", "diagnosis.py", "handbook.py", "flat_all_reduce.py"),
    *("checks/*.py", "rubric.py", "rubric.yaml", "tolerances.py", "tolerances.json"),
    *("grader.py", "results.py"),
)
# The first rule whose pattern fits a path decides; a path that none fits stays out.
RULES = [  # (pattern, handed out?, why)
    ("staff/timing/measurements.py", False, "measures the finished tasks, for the README"),
    ("staff/timing/sync_times.py", False, "has the solutions' collectives side by side"),
    ("staff/timing/rounds.py", False, "instructors' timings"),
    ("report/timings.*", False, "instructors' timings"),
    ("staff/timing/class_runs.py", False, "instructors' timings"),
    ("report/example/*", False, "answers to the tasks' questions"),
    ("common/*", True, "the plumbing, with some of what students write"),
    ("task*/*", True, "the tasks: their texts, and scripts with TODOs"),
    ("cluster/*", True, "starts workers, checks clusters, emulates one"),
    ("report/*", True, "builds a student's own report"),
    ("sample_data/*", True, "data for a machine without a network"),
    *((f"grading/{name}", True, "packs a student's work") for name in PACKING),
    *((f"grading/{name}", True, "the checks that need no reference") for name in CHECKING),
    ("grading/*", False, "the reference; grades classes, makes this handout"),
    ("tests/grading/*", True, "the checks as tests"),
    ("tests/workers.py", True, "starts workers for the tests"),
    ("tests/test_loader.py", True, "tests what students write: the shares of the data"),
    ("tests/test_world.py", True, "tests what students write: the process group"),
    ("tests/test_tasks.py", True, "tests what students write: each task's losses and records"),
    ("tests/test_record.py", True, "tests what their runs leave"),
    ("tests/test_cli.py", True, "tests the flags"),
    ("tests/test_features.py", True, "tests the data's way to the model"),
    ("tests/test_glue.py", True, "tests the data's way to the model"),
    ("tests/test_hello.py", True, "tests the check of a cluster"),
    ("tests/test_launch.py", True, "tests the launcher"),
    ("tests/test_sample.py", True, "tests the sample data"),
    (
        "tests/*",
        False,
        "tests of what stays out or is not for students to touch, or telling",
    ),
    (".ci/*", False, "this repository's own CI"),
    ("CHANGELOG.md", False, "of this repository"),
    ("CONTRIBUTING.md", False, "how to change the kit"),
    ("README.md", True, "less what is for graders and instructors"),
    ("docs/mistakes.md", True, "what may be wrong and what helps: the diagnoses point there"),
    ("LICENSE", True, ""),
    (".gitignore", True, ""),
    ("Makefile", True, "make demo, make test"),
    ("setup.sh", True, "makes .venv"),
    ("pyproject.toml", True, "the packages"),
    ("requirements.lock", True, "the packages"),
    ("download_glue_data.py", True, "fetches the data"),
]
MOVED = {"staff/handout/overlay/tests/conftest.py": "tests/conftest.py"}
EDITS = [  # (file, pattern that fits there exactly once, what takes its place)
    ("README.md", r"(?ms)^## For graders\n.*?(?=^## (?!For ))", ""),
    ("README.md", r"(?s)(\*\*The report\.\*\*) `make demo` leaves.*?(?=Yours:)", r"\1 "),
    (
        "README.md",
        r"(?m)^## Two commands\n",
        "## What is to be written\n\n"
        "The parts that [TODO.md](TODO.md) lists, in its order. Until a part is there, what needs\n"
        "it ends with one line that says where it belongs; everything else runs, and `make test`\n"
        "skips what cannot be tested yet.\n\n\\g<0>",
    ),
    ("Makefile", r"(?m)^\t@echo \"make bench .*\n", ""),
    ("Makefile", r"(?m)^\t@echo \"make gallery .*\n", ""),
    ("Makefile", r"(?m)^gallery: setup\n(?:\t.*\n)+\n?", ""),
    ("Makefile", r"(?m)^(\.PHONY:.*) gallery\b", r"\1"),
    ("Makefile", r"(?m)^((?:\w+ )+)gallery (.*: export)", r"\1\2"),
    ("Makefile", r"(?m)^bench: setup\n(?:\t.*\n)+\n?", ""),
    ("Makefile", r"(?m)^(\.PHONY:.*) bench\b", r"\1"),
    ("Makefile", r"(?m)^((?:\w+ )+)bench (.*: export)", r"\1\2"),
]


def tracked(root):
    """The paths of a repository's files, relative to it: those that git tracks; all without git."""
    git = ["git", "-C", str(root)]
    try:
        top = subprocess.run([*git, "rev-parse", "--show-toplevel"], capture_output=True, text=True)
        if top.returncode == 0 and Path(top.stdout.rstrip("\n")).resolve() == root.resolve():
            told = subprocess.run([*git, "ls-files", "-z"], capture_output=True, check=True).stdout
            paths = [path for path in told.decode().split("\0") if path]
            return sorted(path for path in paths if (root / path).is_file())
    except (OSError, subprocess.CalledProcessError):
        pass
    every = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in every if not made_by_a_run(path))


def made_by_a_run(path):
    """Whether a path is of a kind that .gitignore names: needed where there is no git to ask."""
    made = ("__pycache__", "*.egg-info", "cached_*", ".*_cache", ".git", ".venv", "runs", "build")
    return any(fnmatch.fnmatchcase(part, name) for part in path.parts for name in made)


def rule_for(path):
    """The rule that decides about a path."""
    fits = (rule for rule in RULES if fnmatch.fnmatchcase(path, rule[0]))
    return next(fits, ("*", False, "no rule names it"))
