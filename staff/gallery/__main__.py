"""`python -m staff.gallery [NAME ...]`: grades the gallery, shows the score, sets the tolerances.

Exits 1 if a wrong submission is not caught for its reason, or a right one is.
"""

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor

from grading import rubric
from grading.results import FAILED
from grading.sandbox.session import Session

from .right import RIGHT
from .score import can_run, score
from .wrong import WRONG

MEASURES = ("loss", "gradients", "clipping", "identical", "parameters")


def main():
    parser = argparse.ArgumentParser(prog="python -m staff.gallery", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these submissions")
    parser.add_argument("--jobs", type=int, default=1, help="submissions at once (default: 1)")
    parser.add_argument("--measure", action="store_true", help="write grading/tolerances.json")
    args = parser.parse_args()
    chosen = [v for v in (*WRONG, *RIGHT) if not args.names or v.name in args.names]
    unknown = set(args.names) - {v.name for v in chosen}
    if unknown:
        sys.exit(f"there is no {', '.join(sorted(unknown))} in the gallery")
    runnable = [variant for variant in chosen if can_run(variant)]
    for variant in set(chosen) - set(runnable):
        print(f"not installed: {variant.needs}, so {variant.name} is left out")
    scores = []
    with Session() as session, ThreadPoolExecutor(args.jobs) as pool:
        for one in pool.map(lambda variant: score(variant, session), runnable):
            scores.append(one)
            print_score(one)
    good = [s for s in scores if not s.problem]
    for kind, word in (
        (True, "wrong submissions caught, each with its cause"),
        (False, "right passed"),
    ):
        of_kind = [s for s in scores if bool(s.variant.fails) is kind]
        print(f"{sum(s in good for s in of_kind)} of {len(of_kind)} {word}")
    if args.measure:
        measure(good)
    return len(good) < len(scores)


def print_score(one):
    """A line for a variant, and what is wrong with its verdict."""
    said = "; ".join(
        f"{r.check.partition('/')[2]} ({r.cause})" for r in one.report.results if r.cause
    )
    mark = "ok " if not one.problem else "BAD"
    where = f"{one.variant.task}, {one.report.seconds:.0f} s"
    print(f"{mark} {one.variant.name} ({where}): {said or 'passed'}")
    if one.problem:
        print("    " + one.problem.replace("\n", "\n    "))
    sys.stdout.flush()


def measure(scores):
    """Write for each measure how far right submissions were off, and the nearest wrong one."""
    found = {}
    for name in MEASURES:
        off = [
            (s, s.report.measured[f"{s.variant.task}/{name}"])
            for s in scores
            if f"{s.variant.task}/{name}" in s.report.measured
        ]
        noise = [value for s, value in off if not s.variant.fails]
        wrong = [value for s, value in off if s.variant.fails[:1] == (name,)]
        wrong = wrong or [value for s, value in off if failed(s.report, name)]
        if not noise or not wrong:
            sys.exit(f"{name}: measured on too few submissions; nothing is written")
        found[name] = {"noise": float(f"{max(noise):.2g}"), "wrong": float(f"{min(wrong):.2g}")}
        print(f"{name}: right at most {max(noise):.2g}, nearest wrong {min(wrong):.2g}")
    rubric.TOLERANCES.write_text(json.dumps(found, indent=1) + "\n")


def failed(report, name):
    """Whether a check of that name has failed."""
    return any(r.check.endswith(f"/{name}") and r.status == FAILED for r in report.results)


if __name__ == "__main__":
    sys.exit(main())
