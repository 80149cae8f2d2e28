"""One case: a run, its fault, what the workers do then, and the run that goes on from there."""

import contextlib
import json
import os
import re
import signal
import tempfile
from pathlib import Path

from tests.campaign.faults import FILLER, SIZE, TIMEOUT_SECONDS, Case, Place
from tests.campaign.trial import Run
from tests.workers import DEADLINE

import psutil

LATE_SECONDS = 5  # after --timeout
BY_ITSELF = (1, 2)  # exit codes of a worker that has ended itself after a fault
COLLECTIVES = {  # by task, in which survivors of a fault in a step may be
    "task2a": "gather|scatter",
    "task2b": "all_reduce",
    "task3": "the (for|back)ward pass",
}
EXCHANGE = "the exchange with all ranks"
WAITS = {  # by moment
    "joining": EXCHANGE,
    "meeting": f"{EXCHANGE}|init_process_group",
    "cache": EXCHANGE,
    "evaluation": "all_gather_object",
    "checkpoint": "barrier",
    "last save": "the wait for all ranks to finish",
    "leaving": "the wait for all ranks to finish",
}
LOCKED = ": still locked by another process; continuing without the cache"
BLAMED = r"""(?x) :\ (?:the\ model\ was\ not\ saved:\ )?rank\ (\d)\ (?:
    failed:|disappeared\ |never\ |is\ gone|does\ not\ respond|has\ already\ )
    | timed\ out\ (?:waiting\ for|after\ 12\ s\ connecting\ to)\ rank\ (\d)\ """


def run_case(case: Case, first_node: int, expected: dict) -> dict[str, list[str]]:
    """Run a case; returns what was judged, and what was wrong with it."""
    small_disk = case.fault == "disk"
    with (
        tempfile.TemporaryDirectory() as folder,
        Run(Path(folder, "run"), first_node, small_disk) as run,
    ):
        run.start(case.task, case)
        victim = run.wait_for(Place(0, run.output).mark)
        if victim < 0:
            errors = [worker.errors for worker in run.workers]
            return {"the fault came": [f"it did not: {errors}"]}
        judged = judge(case, run, victim)
        run.end()
        judged |= judge_leftovers(case, run)
        if case.resume:
            judged["resumed bit for bit"] = judge_resumed(case, run, expected)
        return judged


def judge(case: Case, run: Run, victim: int) -> dict[str, list[str]]:
    """How the workers have ended after the fault."""
    survivors = [rank for rank in range(SIZE) if rank != victim]
    late = run.wait(survivors, TIMEOUT_SECONDS + LATE_SECONDS)
    run.workers[victim].signal(signal.SIGCONT)
    late += run.wait([victim], TIMEOUT_SECONDS + LATE_SECONDS)
    ended = [rank for rank in range(SIZE) if rank not in late]
    codes = {rank: run.workers[rank].process.exitcode for rank in ended}
    allowed = dict.fromkeys(survivors, BY_ITSELF if case.fault == "disk" else (1,))
    allowed[victim] = (-signal.SIGKILL,) if case.fault == "kill" else BY_ITSELF
    perhaps_saved = case.fault == "disk" and case.moment == "leaving"
    if perhaps_saved:
        allowed = dict.fromkeys(range(SIZE), (0, *BY_ITSELF))  # rank 0 may still be saving
    if case.moment == "joining":  # the others have only waited for it
        allowed = {rank: (*allowed[rank], 2) for rank in allowed}
    return {
        "ended in time": [f"rank {rank} goes on" for rank in late],
        "exit codes": [f"rank {r}: {codes[r]}" for r in ended if codes[r] not in allowed[r]],
        "rank and collective named": [
            f"rank {rank}: {run.workers[rank].errors}"
            for rank in survivors
            if not perhaps_saved
            and rank in ended
            and not names(case, victim, run.workers[rank].errors)
        ],
    }


def names(case: Case, victim: int, lines: list[str]) -> bool:
    """Whether a survivor's only line names the rank that the fault came to, and where itself was.

    All workers share the disk that is full. Where a rank has reported that it failed, and why, the
    others may hear of it while they compute; and why it failed may be another rank.
    """
    lines = [line for line in lines if not line.endswith(LOCKED)]
    line = " ".join(lines)
    if case.fault == "disk" and "the disk is full" in line:
        return len(lines) == 1
    blamed = ["".join(found) for found in re.findall(BLAMED, line)]
    waits = WAITS.get(case.moment) or f"{COLLECTIVES[case.task]}|a request to rank 0"
    reported = f"rank {victim} failed: " in line
    here = "timed out" in line or re.search(rf"stops in ({waits}) \(", line) or reported
    return len(lines) == 1 and blamed[-1:] == [str(victim)] and bool(here)


def judge_leftovers(case: Case, run: Run) -> dict[str, list[str]]:
    """What the workers have left behind: processes, half-written files, a record of success."""
    groups = {worker.process.pid for worker in run.workers}
    orphans = [p.pid for p in psutil.process_iter() if is_alive(p) and group_of(p) in groups]
    parts = [path.name for path in run.output.rglob("*.part")] if case.fault != "kill" else []
    with contextlib.suppress(FileNotFoundError):
        facts = json.loads((run.output / "run.json").read_text())
        if facts["end"] is not None and case.moment not in ("last save", "leaving"):
            parts.append("a run.json of a run that has succeeded")
    return {"no orphans": [str(pid) for pid in orphans], "nothing half-written": parts}


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def group_of(process: psutil.Process) -> int:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(process.pid)
    return 0


def judge_resumed(case: Case, run: Run, expected: dict) -> list[str]:
    """Run again with --resume: what differs from a run that was never cut."""
    run.join_links()
    (run.output / FILLER).unlink(missing_ok=True)
    run.start(case.task, flags="--resume")
    if late := run.wait(list(range(SIZE)), DEADLINE):
        return [f"ranks {late} go on"]
    if any(worker.process.exitcode for worker in run.workers):
        return [f"rank {worker.rank}: {worker.errors}" for worker in run.workers]
    found = run.results()
    parts = [path.name for path in run.output.rglob("*.part")]
    return [name for name in expected if found.get(name) != expected[name]] + parts
