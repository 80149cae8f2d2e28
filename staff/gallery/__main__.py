"""`python -m staff.gallery [NAME ...]`: grades the gallery, shows the score, sets the tolerances.

Exits 1 if a wrong submission is not caught for its reason, a right one is, or none was graded.
With --minutes it takes them in an order that --seed decides (by default the day) until time is up.
With --quick a wrong one is run only in the settings that are to show what is wrong with it.
With --only they are those that bear on a check: right ones of its tasks, wrong ones that fail it.
--measure sets what was measured. Where only some of a check's submissions were graded, it widens
the range that is stored and never narrows it.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from math import inf
from random import Random

from grading import rubric
from grading.results import FAILED
from grading.sandbox.session import Session

from .right import RIGHT
from .score import Score, can_run, score
from .wrong import WRONG

MEASURES = ("loss", "gradients", "clipping", "identical", "parameters")


def main():
    parser = argparse.ArgumentParser(prog="python -m staff.gallery", description=__doc__)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="only these submissions")
    add("--jobs", type=int, default=1, help="submissions at once (default: 1)")
    add("--minutes", type=float, default=inf, help="start none after these")
    add("--seed", default=f"{datetime.now(timezone.utc):%F}", help="(today)")
    add("--quick", action="store_true", help="only the settings that matter")
    add("--measure", action="store_true", help="write grading/tolerances.json")
    add("--only", action="append", choices=MEASURES, help="only this check (repeat it for more)")
    args = parser.parse_args()
    chosen = [v for v in (*WRONG, *RIGHT) if not args.names or v.name in args.names]
    unknown = set(args.names) - {v.name for v in chosen}
    if unknown:
        sys.exit(f"there is no {', '.join(sorted(unknown))} in the gallery")
    chosen = [v for v in chosen if not args.only or bears_on(v, args.only)]
    runnable = [variant for variant in chosen if can_run(variant)]
    for variant in set(chosen) - set(runnable):
        print(f"not installed: {variant.needs}, so {variant.name} is left out")
    if args.minutes < inf:
        print(f"a sample: --minutes {args.minutes:g} --seed {args.seed}", flush=True)
        Random(args.seed).shuffle(runnable)
    scores = []
    with Session() as session:
        for one in scores_of(runnable, session, args):
            scores.append(one)
            print_score(one)
    print(f"{len(scores)} of {len(runnable)} submissions graded")
    good = [s for s in scores if not s.problem]
    for kind, word in (
        (True, "wrong submissions caught, each with its cause"),
        (False, "right passed"),
    ):
        of_kind = [s for s in scores if bool(s.variant.fails) is kind]
        print(f"{sum(s in good for s in of_kind)} of {len(of_kind)} {word}")
    if bad := [s.variant.name for s in scores if s.problem]:
        print(f"wrong verdicts: {' '.join(bad)}")
    if args.measure:
        measure(good, args.only or MEASURES, complete=not args.names and len(scores) == len(chosen))
    return not scores or len(good) < len(scores)


def scores_of(variants, session, args: argparse.Namespace) -> Iterator[Score]:
    """The variants' scores, in order; none is started after --minutes."""
    end = time.monotonic() + 60 * args.minutes

    def in_time(variant):
        return score(variant, session, args.quick) if time.monotonic() < end else None

    with ThreadPoolExecutor(args.jobs) as pool:
        yield from filter(None, pool.map(in_time, variants))


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


def bears_on(variant, names):
    """Whether a variant's deviations in one of these checks are among those that bound it."""
    if variant.fails:
        return variant.fails[0] in names
    return any(check.name in names for check in rubric.load(tasks=[variant.task]))


def measure(scores, names, complete):
    """Write for each of these checks how far right submissions were off, and the nearest wrong one.

    Unless all submissions that bear on it were graded, what is stored is only widened.
    """
    stored = json.loads(rubric.TOLERANCES.read_text())
    found = dict(stored)
    for name in names:
        off = [
            (s, s.report.measured[f"{s.variant.task}/{name}"])
            for s in scores
            if f"{s.variant.task}/{name}" in s.report.measured
        ]
        noise = [value for s, value in off if not s.variant.fails]
        wrong = [value for s, value in off if s.variant.fails[:1] == (name,)]
        wrong = wrong or [value for s, value in off if failed(s.report, name)]
        if complete and not (noise and wrong):
            sys.exit(f"{name}: measured on too few submissions; nothing is written")
        if not complete:
            noise, wrong = [*noise, stored[name]["noise"]], [*wrong, stored[name]["wrong"]]
        found[name] = {"noise": float(f"{max(noise):.2g}"), "wrong": float(f"{min(wrong):.2g}")}
        changed = "" if found[name] != stored.get(name) else " (as before)"
        print(f"{name}: right at most {max(noise):.2g}, nearest wrong {min(wrong):.2g}{changed}")
    rubric.TOLERANCES.write_text(json.dumps(found, indent=1) + "\n")


def failed(report, name):
    """Whether a check of that name has failed."""
    return any(r.check.endswith(f"/{name}") and r.status == FAILED for r in report.results)


if __name__ == "__main__":
    sys.exit(main())
