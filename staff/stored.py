"""Write grading/stored.npz: what students' copies of the kit compare their work with.

    python -m staff.stored

The numbers are the reference's for the rows that this repository's solution reads: with one worker
and four, and in a few steps with two and three. Write them again when the small model, the sample,
the settings or the order of the rows change; staff/tests/test_stored.py says if they are out of
date.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from common.files import whole
from common.tasks import TASKS
from grading import inputs, rubric
from grading.checks.evidence import Evidence
from grading.checks.graded_task import GradedTask
from grading.mapping import read_mapping
from grading.runner import Runner
from grading.sandbox.session import Session
from grading.stored import FILE, digest

import numpy as np

KIT = Path(__file__).resolve().parents[1]
RUNS = (("task1", 1, inputs.TOTAL_BATCH), ("task2b", 4, inputs.TOTAL_BATCH // 4))


def evidences(session: Session) -> Iterator[tuple[str, Evidence]]:
    """(name, Evidence) of every run of the solution whose numbers are stored."""
    runner = Runner(KIT, read_mapping(KIT), session)
    tolerances = rubric.load_tolerances()
    for task, workers, batch in RUNS:
        graded = GradedTask(TASKS[task], workers, batch, tolerances, session.known)
        for setting in inputs.SETTINGS.values():
            if not setting.steps:
                yield f"{setting.name}-{workers}", runner.run_setting(graded, setting)
    for workers in inputs.OTHER_WORKERS:
        graded = GradedTask(TASKS["task2b"], workers, batch, tolerances, session.known)
        yield f"few-{workers}", runner.run_setting(graded, inputs.SETTINGS["few"])


def arrays(session: Session) -> dict[str, np.ndarray]:
    """What is stored, by name."""
    found = {}
    for name, evidence in evidences(session):
        right = evidence.reference
        if right is None:
            sys.exit(f"{name}: {evidence.why}")
        found |= {
            "names": np.array(right["names"]),
            "sizes": np.array(right["sizes"]),
            "start": right["start"],
            f"{name}/rows": np.array([digest(evidence.seen, s) for s in range(evidence.steps)]),
            f"{name}/loss": np.mean(right["loss"], axis=1),
            f"{name}/norm": right["norm"],
            f"{name}/clipped": right["clipped"].astype(np.float32),
            f"{name}/moved": (right["weights"] - right["start"]).astype(np.float32),
        }
    return found


if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m staff.stored", description=(__doc__ or "").splitlines()[0]
    ).parse_args()
    with Session() as session, whole(FILE) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays(session))  # pyright: ignore[reportArgumentType]
    print(f"wrote {FILE.name} ({FILE.stat().st_size:,} bytes)")
