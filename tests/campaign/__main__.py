"""Random faults in runs of three workers: do the others end in time, and name the right rank?

    python -m tests.campaign --cases 100 --seed 7

A case is a task, a rank, a moment and a fault, which that rank does to itself. It is right if all
ranks end within --timeout + 5 s of it, the others with one line that names that rank and the
collective in which they waited for it; if nothing half-written and no process is left; and, where
the run is resumed, if it leaves the steps, metrics and weights of a run that was never cut, bit for
bit. Cut links and full disks need the network lab (Linux, as root or with user namespaces).
"""

import argparse
import queue
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from common.tables import markdown_table
from tests.campaign import machines
from tests.campaign.faults import SIZE, TASK_NAMES, Case, choose
from tests.campaign.judging import run_case
from tests.campaign.trial import run_whole


def main() -> int:
    """Run the cases; the exit code is 1 if one of them is not right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")))
    parser.add_argument("--jobs", type=int, default=3, help="cases at once (default: 3)")
    parser.add_argument("--only", default="", help="cases whose description holds this text")
    args = parser.parse_args()
    if not machines.INSIDE:
        machines.enter_lab("tests.campaign", sys.argv[1:])
    else:
        machines.build(SIZE * args.jobs)
    print(f"campaign: {args.cases} cases, --seed {args.seed}", flush=True)
    random_numbers = random.Random(args.seed)
    cases = [choose(random_numbers, machines.INSIDE) for _ in range(args.cases)]
    cases = [case for case in cases if args.only in str(case)]
    free: queue.SimpleQueue[int] = queue.SimpleQueue()  # the first of each three nodes
    for job in range(args.jobs):
        free.put(SIZE * job)

    def on_nodes(function, *arguments):
        node = free.get()
        try:
            return function(*arguments[:1], node, *arguments[1:])
        finally:
            free.put(node)

    with ThreadPoolExecutor(args.jobs) as pool:
        whole = pool.map(lambda task: on_nodes(run_whole, task), TASK_NAMES)
        expected = dict(zip(TASK_NAMES, whole, strict=True))
        done = pool.map(lambda case: on_nodes(run_case, case, expected[case.task]), cases)
        return report(cases, done)


def report(cases: list[Case], done) -> int:
    """Print each case as it ends, and how many were right in what."""
    judged, right, wrong = Counter(), Counter(), 0
    for number, (case, results) in enumerate(zip(cases, done, strict=True), 1):
        problems = {what: texts for what, texts in results.items() if texts}
        print(number, case, problems or "right", flush=True)
        wrong += bool(problems)
        judged.update(list(results))
        right.update(set(results) - set(problems))
    rows = [[what, f"{right[what]} of {judged[what]}"] for what in judged]
    print(markdown_table(["judged", "right"], rows))
    print(f"right in everything: {len(cases) - wrong} of {len(cases)}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
