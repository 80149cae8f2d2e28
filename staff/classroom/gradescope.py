"""Makes the autograder for Gradescope, and is what runs there.

    python -m staff gradescope --out autograder.zip --torch torch==2.13.0+cpu --torch-index URL
    python -m staff gradescope --run /autograder       (run_autograder does this)

The archive holds setup.sh, run_autograder and this kit. results.json is written before the first
check and after every one, and a last time before Gradescope's own limit of time.
"""

import argparse
import os
import shlex
import signal
import sys
import traceback
import zipfile
from pathlib import Path

from common.errors import UserError
from common.tasks import TASKS
from grading.hand_in.files import walk
from grading.hand_in.safe_text import visible
from grading.results import Report, Result
from staff.classroom.gradescope_results import Results
from staff.classroom.jobs import Job, next_news, stop

KIT = Path(__file__).resolve().parents[2]
ROOMS = ("cluster", "common", "grading", "sample_data", "staff/classroom", *TASKS)
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
TIDY = 3.0  # seconds for a grader that is out of time to end its workers
SETUP = """#!/usr/bin/env bash
# Gradescope runs this once, as root, when it builds the container.
set -euo pipefail
apt-get update
apt-get install -y --no-install-recommends python3 python3-venv
cd "$(dirname "$0")/kit"
chmod +x setup.sh
TORCH={torch} TORCH_INDEX={index} ./setup.sh
# A submission runs as a user of its own: it may use the packages, and see nothing of the kit.
find . -mindepth 1 -maxdepth 1 ! -name .venv -exec chmod -R go-rwx {{}} +
chmod -R a+rX .venv
"""
RUN = """#!/usr/bin/env bash
# Gradescope runs this, as root, for every submission.
root=${1:-/autograder}
cd "$root/source/kit" && exec .venv/bin/python -m staff gradescope --run "$root"
"""


def kit_files():
    """The kit's files, relative to it, that grading needs."""
    inner = (Path(room) / path for room in ROOMS for path in walk(KIT / room)[0])
    return sorted({*map(Path, FILES), *inner})


def build(out, torch="", index=""):
    """Write the autograder's archive, whole or not at all: the same kit gives the same bytes."""
    texts = {
        "setup.sh": SETUP.format(torch=shlex.quote(torch), index=shlex.quote(index)),
        "run_autograder": RUN,
    }
    contents = {name: text.encode() for name, text in texts.items()}
    contents |= {f"kit/{path.as_posix()}": (KIT / path).read_bytes() for path in kit_files()}
    part = out.with_name(out.name + ".part")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as bundle:
            for name, content in sorted(contents.items()):
                member = zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0))
                runs = name in texts or name.endswith(".sh")
                member.external_attr = (0o100755 if runs else 0o100644) << 16
                member.create_system, member.compress_type = 3, zipfile.ZIP_DEFLATED
                bundle.writestr(member, content)
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    return len(contents)


def run(root, minutes=9.5, grade=None, checks=None):
    """Grade root/submission into root/results/results.json; returns the exit code.

    It is 1 if the grader itself failed: then results.json says so. `grade` and `checks` are for
    tests.
    """
    folder = root / "results"
    folder.mkdir(exist_ok=True)
    os.chmod(folder, 0o700)  # a submission runs as a user of its own, if we are root
    results, job = Results(folder, checks or []), None
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if checks is None:
            from grading import rubric

            results.checks = rubric.load()
        results.write()
        job = Job(root / "submission", grade=grade, seconds=60 * minutes)
        while not job.over:
            for _, (kind, told) in next_news([job]):
                note(results, kind, told)
    except KeyboardInterrupt:
        results.stop("the autograder was told to end")
    except Exception:
        note(results, "failed", traceback.format_exc())
    finally:
        if job:
            stop([job], TIDY)
    print(f"{results.path}: {results.facts()['score']:g} points; {visible(results.said)}")
    return int(results.failed)


def note(results, kind, told):
    """Write what a job told; what is wrong with the grader is not for students' eyes."""
    if kind == "result":
        results.add(Result(**told))
    elif kind == "report":
        results.finish(Report.from_json(told))
    elif kind == "refused":
        results.refuse(told)
    elif kind == "late":
        results.stop(told)
    else:
        print(visible(told, 20_000), file=sys.stderr)
        results.fail()


def main(argv=None):
    """Make the archive, or run where it is unpacked; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m staff gradescope", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--out", type=Path, default=Path("autograder.zip"), help="the archive")
    parser.add_argument("--torch", default="", help="PyTorch's build (default: as setup.sh has it)")
    parser.add_argument("--torch-index", default="", metavar="URL", help="where that build is")
    parser.add_argument("--run", type=Path, metavar="ROOT", help="grade ROOT/submission")
    parser.add_argument("--minutes", type=float, default=9.5, help="of --run (default: 9.5)")
    args = parser.parse_args(argv)
    if args.run:
        if not args.run.is_dir() or not args.minutes > 0:
            raise UserError(f"--run {args.run} --minutes {args.minutes:g}: give a folder, and time")
        return run(args.run, args.minutes)
    if not args.out.resolve().parent.is_dir():
        raise UserError(f"--out {args.out}: there is no folder {args.out.parent}; make it first")
    count = build(args.out, args.torch, args.torch_index)
    print(f"written: {args.out} ({args.out.stat().st_size:,} bytes, {count} files)")
    if not args.torch_index:
        print(
            "without --torch-index the container gets PyTorch as the package index has it, mostly "
            "a build for GPUs, of gigabytes: give the URL that PyTorch's site shows for the CPU"
        )
    return 0
