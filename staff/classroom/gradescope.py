"""Makes the autograder for Gradescope, and runs there.

    python -m staff gradescope --out autograder.zip --torch torch==2.13.0+cpu --torch-index URL
    python -m staff gradescope --run /autograder       (run_autograder does this)

The archive holds setup.sh, run_autograder and this kit. results.json is written before the first
check, after every check, and once more before Gradescope's own time limit.
"""

import argparse
import os
import shlex
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import write_zip
from common.tasks import FOLDERS
from grading import rubric
from grading.hand_in.files import walk
from grading.hand_in.safe_text import visible
from grading.results import Report, Result
from staff.classroom.gradescope_results import Results
from staff.classroom.jobs import Grader, next_messages, stop

KIT = Path(__file__).resolve().parents[2]
ROOMS = ("cluster", "common", "grading", "sample_data", "staff/classroom", *FOLDERS)
FILES = (
    "LICENSE",
    "README.md",
    "download_glue_data.py",
    "pyproject.toml",
    "requirements.lock",
    "setup.sh",
    "staff/__init__.py",
    "staff/__main__.py",
    "staff/reference.py",
)
DESCRIPTION = "Make the autograder for Gradescope, or run it where it is unpacked."
CLEANUP_SECONDS = 3.0  # for a grader that is out of time to end its workers
LARGEST_TRACEBACK = 20_000  # characters
SETUP = """#!/usr/bin/env bash
# Gradescope runs this once, as root, when it builds the container.
set -euo pipefail
apt-get update
apt-get install -y --no-install-recommends python3 python3-venv
cd "$(dirname "$0")/kit"
chmod +x setup.sh
TORCH={torch} TORCH_INDEX={index} ./setup.sh
# A submission runs as a separate user, who may use the packages and cannot see the kit.
find . -mindepth 1 -maxdepth 1 ! -name .venv -exec chmod -R go-rwx {{}} +
chmod -R a+rX .venv
"""
RUN = """#!/usr/bin/env bash
# Gradescope runs this, as root, for every submission.
root=${1:-/autograder}
cd "$root/source/kit" && exec .venv/bin/python -m staff gradescope --run "$root"
"""


def kit_files() -> list[Path]:
    """The kit's files, relative to it, that grading needs."""
    inner = (Path(room) / path for room in ROOMS for path in walk(KIT / room)[0])
    return sorted({*map(Path, FILES), *inner})


def build(out: Path, torch: str = "", index: str = "") -> int:
    """Write the autograder's archive and return its number of files; equal kits, equal bytes."""
    texts = {
        "setup.sh": SETUP.format(torch=shlex.quote(torch), index=shlex.quote(index)),
        "run_autograder": RUN,
    }
    contents = {name: text.encode() for name, text in texts.items()}
    contents |= {f"kit/{path.as_posix()}": (KIT / path).read_bytes() for path in kit_files()}
    executable = {name for name in contents if name in texts or name.endswith(".sh")}
    write_zip(out, contents, executable)
    return len(contents)


def run_autograder(root: Path, minutes: float = 9.5) -> int:
    """Grade root/submission into root/results/results.json; returns the exit code.

    It is 1 if the grader itself failed; results.json then says so.
    """
    folder = root / "results"
    folder.mkdir(exist_ok=True)
    os.chmod(folder, 0o700)  # a submission runs as a separate user, if we are root
    results, grader = Results(folder), None
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        results.checks = rubric.load()
        results.write()
        grader = Grader()
        grader.begin(root / "submission", 60 * minutes)
        while not grader.over:
            for _, (kind, content) in next_messages([grader]):
                update(results, kind, content)
    except KeyboardInterrupt:
        results.stop("the autograder was terminated")
    except Exception:
        update(results, "failed", traceback.format_exc())
    finally:
        if grader:
            stop([grader], CLEANUP_SECONDS)
    score = results.facts()["score"]
    print(f"{results.path}: {score:g} points; {visible(results.summary)}")
    return int(results.failed)


def update(results: Results, kind: str, content: Any) -> None:
    """Record a job's message; students do not see what is wrong with the grader."""
    if kind == "result":
        results.add(Result(**content))
    elif kind == "report":
        results.finish(Report.from_json(content))
    elif kind == "refused":
        results.refuse(content)
    elif kind == "late":
        results.stop(content)
    else:
        print(visible(content, LARGEST_TRACEBACK), file=sys.stderr)
        results.fail()


def main(argv: list[str] | None = None) -> int:
    """Make the archive, or run where it is unpacked; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m staff gradescope", description=DESCRIPTION)
    add = parser.add_argument
    add("--out", type=Path, default=Path("autograder.zip"), help="the archive to write")
    add("--torch", default="", help="the build of PyTorch (default: the one in setup.sh)")
    add("--torch-index", default="", metavar="URL", help="the package index that has that build")
    add("--run", type=Path, metavar="ROOT", help="grade ROOT/submission")
    add("--minutes", type=float, default=9.5, help="time limit of --run (default: 9.5)")
    args = parser.parse_args(argv)
    if args.run:
        if not args.run.is_dir():
            raise UserError(f"--run {args.run}: ROOT must be a folder")
        if not args.minutes > 0:
            raise UserError(f"--minutes {args.minutes:g}: give more than 0")
        return run_autograder(args.run, args.minutes)
    if not args.out.resolve().parent.is_dir():
        raise UserError(f"--out {args.out}: there is no folder {args.out.parent}; make it first")
    count = build(args.out, args.torch, args.torch_index)
    print(f"wrote {args.out} ({args.out.stat().st_size:,} bytes, {count} files)")
    if not args.torch_index:
        print(
            "without --torch-index the container installs PyTorch from the default package index, "
            "usually a build for GPUs of several gigabytes; give the URL that PyTorch's site shows "
            "for the CPU"
        )
    return 0
