"""The records of runs that are handed in with the work: small files, without weights or traces."""

import json
from collections.abc import Iterable
from pathlib import Path

from grading.hand_in.files import why_not_packed

RUNS = "runs"  # where runs are written to, and where they are in the archive
KEPT = ("run.json", "eval_results.txt", "steps.rank*.jsonl", "traffic.rank*.json")


def find_records(
    folder: Path, given: Iterable[Path]
) -> tuple[dict[Path, Path], list[tuple[Path, str]]]:
    """(path in the archive -> file, left out) of the finished runs in `folder`/runs and in `given`.

    `left_out` has the folders of runs that did not finish, and why they are left out.
    """
    found: dict[Path, Path] = {}
    left_out: list[tuple[Path, str]] = []
    own = folder / RUNS
    elsewhere = [place.resolve() for place in given]
    for root in [own, *(place for place in elsewhere if not place.is_relative_to(own))]:
        for file in sorted(root.rglob("run.json")):
            inside = Path(RUNS, *([] if root == own else [root.name]))
            inside /= file.parent.relative_to(root)
            if why := why_unusable(file):
                left_out.append((inside, why))
                continue
            files = (path for pattern in KEPT for path in file.parent.glob(pattern))
            found |= {
                inside / path.name: path for path in files if not why_not_packed(path.lstat())
            }
    return found, left_out


def why_unusable(file: Path) -> str:
    """Why the run with this run.json is of no use to a reader; "" if it finished."""
    try:
        finished = json.loads(file.read_text())["end"] is not None
    except (OSError, ValueError, KeyError, TypeError):
        return "not a run's records"
    return "" if finished else "a run that did not finish"
