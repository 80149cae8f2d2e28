"""`python -m tests.gallery [NAME ...]`: grades the gallery, shows the score, sets the tolerances.

Exits 1 if a wrong submission is not caught for its reason, or a right one is.
"""

import argparse
import json
import sys
import time

from grading import tolerances
from grading.grader import Session

from .right import RIGHT
from .score import can_run, score
from .wrong import WRONG

# Measure -> the check whose failure says that a wrong submission's figure counts.
MEASURES = ("loss", "gradients", "clipping", "identical", "parameters")


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.gallery", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these submissions")
    parser.add_argument("--measure", action="store_true", help="write grading/tolerances.json")
    args = parser.parse_args()
    chosen = [v for v in (*WRONG, *RIGHT) if not args.names or v.name in args.names]
    unknown = set(args.names) - {v.name for v in chosen}
    if unknown:
        sys.exit(f"there is no {', '.join(sorted(unknown))} in the gallery")
    scores = []
    with Session() as session:
        for variant in chosen:
            if not can_run(variant):
                print(f"not installed: {variant.needs}, so {variant.name} is left out")
                continue
            start = time.monotonic()
            scores.append(score(variant, session))
            print_score(scores[-1], time.monotonic() - start)
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


def print_score(one, seconds):
    """A line for a variant, and what is wrong with its verdict."""
    said = "; ".join(
        f"{r.check.partition('/')[2]} ({r.cause})" for r in one.report.results if r.cause
    )
    mark = "ok  " if not one.problem else "BAD "
    print(f"{mark}{one.variant.name} ({one.variant.task}, {seconds:.0f} s): {said or 'passed'}")
    if one.problem:
        print("    " + one.problem.replace("\n", "\n    "))
    sys.stdout.flush()


def measure(scores):
    """Write for each measure how far right submissions were off, and the nearest wrong one."""
    found = {}
    for name in MEASURES:
        off = [(s.variant, s.report.measured.get(f"{s.variant.task}/{name}")) for s in scores]
        noise = max(value for v, value in off if value is not None and not v.fails)
        wrong = min(value for v, value in off if value is not None and v.fails[:1] == (name,))
        found[name] = {"noise": float(f"{noise:.2g}"), "wrong": float(f"{wrong:.2g}")}
        print(f"{name}: right at most {noise:.2g}, nearest wrong {wrong:.2g}")
    tolerances.FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
