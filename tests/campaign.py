"""Random faults in runs of three workers: did the others end in time, and name the right rank?

    python -m tests.campaign --cases 100 --seed 7

A case is a task, a rank, a moment and a fault, which that rank does to itself. It is right if every
other rank ends within --timeout + 5 s of it, with exit code 1 and one line that names that rank.
"""

import argparse
import importlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from common.record.record import Record
from tests.workers import Crew

SIZE = 3
TIMEOUT_SECONDS = 12
TASKS = ("task2a", "task2b", "task3")
MOMENTS = ("load", "make_optimizer", "end_step", "evaluate", "finish")  # a call that begins then
FAULTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": lambda: time.sleep(10 * TIMEOUT_SECONDS),
    "exception": lambda: 1 / 0,
    "memory": lambda: bytearray(1 << 60),
}
NAMED = {"exception": "rank {} failed: ZeroDivision", "memory": "rank {} failed: MemoryError"}


def suffer(args, world):
    """Be a worker of a task; the fault comes when the victim calls what names the moment."""
    task, victim, moment, fault = os.environ["FAULT"].split()
    script = importlib.import_module(f"{task}.run_glue")
    owner = script if hasattr(script, moment) else Record
    original = getattr(owner, moment)

    def spoiled(*arguments, **options):
        if int(victim) == world.rank:
            Path(args.output_dir + ".fault").touch()
            FAULTS[fault]()
        return original(*arguments, **options)

    setattr(owner, moment, spoiled)
    script.main(args, world)


def run_case(case):
    """Run a case; returns what went wrong, "" for a right one."""
    _, victim, _, fault = case
    with tempfile.TemporaryDirectory() as folder, Crew(Path(folder, "crew")) as crew:
        env = {"FAULT": " ".join(map(str, case))}
        workers = crew.start_all(suffer, SIZE, f"--do_eval --timeout {TIMEOUT_SECONDS}", env)
        mark = Path(f"{crew.output}.fault")
        crew.wait_until(mark.exists)
        others = [worker for worker in workers if worker.rank != victim]
        deadline = time.monotonic() + TIMEOUT_SECONDS + 5
        for worker in others:
            worker.process.join(max(0, deadline - time.monotonic()))
        name = NAMED.get(fault, "rank {} ").format(victim)
        return "; ".join(filter(None, (judge(worker, name) for worker in others)))


def judge(worker, name):
    """What is wrong with a survivor's end."""
    if worker.process.exitcode is None:
        return f"rank {worker.rank} did not end in time"
    lines = worker.errors
    if worker.process.exitcode != 1 or len(lines) != 1 or f": {name}" not in lines[0]:
        return f"rank {worker.rank}, exit code {worker.process.exitcode}: {lines}"
    return ""


def main():
    """Run the cases; the exit code is 1 if one of them is not right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")))
    args = parser.parse_args()
    print(f"campaign: {args.cases} cases, --seed {args.seed}", flush=True)
    choose, right = random.Random(args.seed), Counter()
    for number in range(1, args.cases + 1):
        case = [choose.choice(x) for x in (TASKS, range(SIZE), MOMENTS, list(FAULTS))]
        wrong = run_case(case)
        right[case[3]] += not wrong
        print(number, *case, wrong or "right", flush=True)
    print(f"right: {right.total()} of {args.cases}")
    return int(right.total() < args.cases)


if __name__ == "__main__":
    from tests import campaign  # workers find its functions by this name

    sys.exit(campaign.main())
