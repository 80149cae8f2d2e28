"""Write grading/stored.npz: what students' copies of the kit compare their work with.

    python -m staff.stored

The numbers are the reference's for the rows that this repository's solution reads: with one worker
and four, and in a few steps with two and three; of the model for pipelines, with one replica. Write
them again when the small models, the sample, the settings or the order of the rows change;
staff/tests/test_stored.py says if they are out of date.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from common.files import whole
from common.tasks import SCRIPTS
from grading import inputs, rubric
from grading.checks.evidence import Evidence
from grading.checks.graded_task import GradedTask
from grading.mapping import read_mapping
from grading.runner import Runner
from grading.sandbox.session import Session
from grading.stored import FILE, digest, prefix_of

import numpy as np

KIT = Path(__file__).resolve().parents[1]
RUNS = (("task1", 1), ("task2b", 4), ("naive", 1))  # task, ranks that read rows


def evidences(session: Session) -> Iterator[tuple[str, str, Evidence]]:
    """(its model's prefix, name, Evidence) of every run of the solution that is stored."""
    runner = Runner(KIT, read_mapping(KIT), session)
    tolerances = rubric.load_tolerances()
    for name, readers in RUNS:
        task, batch = SCRIPTS[name], inputs.TOTAL_BATCH // readers
        _, parts = inputs.division(task, session.workers)
        graded = GradedTask(task, readers, batch, tolerances, session.known, parts)
        for setting in inputs.SETTINGS.values():
            if task.divided or not setting.steps:
                evidence = runner.run_setting(graded, setting)
                yield prefix_of(inputs.model_for(task)), f"{setting.name}-{readers}", evidence
    batch = inputs.TOTAL_BATCH // inputs.worker_count()
    for workers in inputs.OTHER_WORKERS:
        graded = GradedTask(SCRIPTS["task2b"], workers, batch, tolerances, session.known)
        yield "", f"few-{workers}", runner.run_setting(graded, inputs.SETTINGS["few"])


def arrays(session: Session) -> dict[str, np.ndarray]:
    """What is stored, by name."""
    found = {}
    for prefix, run, evidence in evidences(session):
        right, name = evidence.reference, f"{prefix}{run}"
        if right is None:
            sys.exit(f"{name}: {evidence.why}")
        found |= {
            f"{prefix}names": np.array(right["names"]),
            f"{prefix}sizes": np.array(right["sizes"]),
            f"{prefix}start": right["start"],
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
