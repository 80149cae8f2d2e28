"""Why a run failed: which rank, which collective, which line of the submission."""

import re
import signal
from collections.abc import Iterable
from pathlib import Path

from grading.checks.observation import TRANSFERS, Observation, Rank
from grading.checks.wording import ranks_text
from grading.plan import Limits
from grading.results import Cause

PEER_LOST = re.compile(
    r"gloo/transport|closed by peer|reset by peer|Timed out waiting|DistNetworkError|Broken pipe|"
    r"lost rank|rank \d+ (?:failed|is lost|has|stops in|stopped)|DistBackendError|refused",
    re.I,
)
FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+),? in (?P<name>\S+)')
UNFINISHED = re.compile(r"TODO\([^\n]*")
NO_GRADIENT = re.compile(  # to send back
    r"does not require grad and does not have a grad_fn|isend\b.*NoneType", re.S
)
UNSCALED = re.compile(r"Attempted unscale_ but _scale is None")
NOT_SCALED = "the backward pass begins with the loss as it is: scale it, by scaler.scale"
GRAPH_CUT = (
    "a stage's inputs have no gradient to send back: receive them with requires_grad_(), and use "
    "them as they are"
)
NOTHING = {"op": "no collective", "where": "before the first"}
MODULES = ("distributed_c10d.py", "c10d_logger.py")


def explain_end(seen: Observation, limits: Limits) -> tuple[str, str, Cause]:
    """(what was got, where, Cause) of a run that was ended, or in which a rank failed."""
    ended = seen.ended
    for rank, one in enumerate(seen.workers):
        if UNFINISHED.search(one.err):
            line = last_line(one.err, UNFINISHED)
            return "a part that is not written yet", f"rank {rank}", Cause("todo", line)
    if ended.reason in ("memory", "disk"):
        text = f"more than {limits.memory * len(seen.workers) / 2**30:.1f} GiB for all ranks"
        if ended.reason == "disk":
            text = f"more than {limits.disk / 2**30:.1f} GiB or {limits.files:,} files on disk"
        return text, "all ranks", Cause("memory", f"it uses {text}, far beyond its need")
    if ended.reason in ("idle", "time"):
        return explain_hang(seen, limits)
    return explain_failure(seen)


def explain_hang(seen: Observation, limits: Limits) -> tuple[str, str, Cause]:
    """The same for ranks that wait for each other, or that never end."""
    got = f"all ranks were idle for {limits.idle:g} s and were killed"
    if seen.ended.reason == "time":
        got = f"it was still running after {limits.seconds:g} s; all ranks were killed"
    counts = [len(rank.collectives) for rank in seen.workers]
    places = [stack_place(stack, seen.root) for stack in seen.ended.stacks]
    if not max(counts):
        stacks = "; ".join(f"rank {r}: {place}" for r, place in enumerate(places) if place)
        cause = Cause("hang", f"no collective began; {stacks}")
        return got, stacks or "before any collective", cause
    if min(counts) == max(counts) or any(passed_on(rank) for rank in seen.workers):
        where, sentence = same_collective(seen)
    else:
        where, sentence = missed_collective(seen, counts, places)
    return got, where, with_evaluation(seen, Cause("hang", sentence))


def same_collective(seen: Observation) -> tuple[str, str]:
    """(where, a sentence) for ranks that have entered equally many collectives."""
    last = [[NOTHING, *rank.collectives][-1] for rank in seen.workers]
    if {one["op"] for one in last} & set(TRANSFERS):
        text = ", ".join(waits_text(rank, one) for rank, one in enumerate(last))
        text = f"the ranks wait for each other: {text}"
    elif len({one["op"] for one in last}) == 1:
        text = f"all ranks entered {number_of(seen.workers[0])}, and none returned"
    else:
        text = "the ranks are blocked in different collectives: " + ", ".join(
            f"rank {r} in {number_of(rank)} ({one['where']})"
            for r, (rank, one) in enumerate(zip(seen.workers, last, strict=True))
        )
    return last[0]["where"], text


def passed_on(rank: Rank) -> bool:
    """Whether a rank was last in a transfer between two ranks, of which each has its own number."""
    return bool(rank.collectives) and rank.collectives[-1]["op"] in TRANSFERS


def waits_text(rank: int, last: dict) -> str:
    """The transfer that a rank began last, in words."""
    peer = {"send": " to rank {}", "recv": " from rank {}"}.get(last["op"], "")
    return f"rank {rank} in {last['op']}{peer.format(last.get('peer'))} ({last['where']})"


def missed_collective(seen: Observation, counts: list[int], places: list[str]) -> tuple[str, str]:
    """The same where some ranks have entered fewer collectives than others."""
    most = max(counts)
    waiting = [rank for rank, count in enumerate(counts) if count == most]
    first = counts.index(min(counts))
    ahead = seen.workers[waiting[0]]
    collective = f"{number_of(ahead, counts[first])} ({ahead.collectives[counts[first]]['where']})"
    place, state = places[first] or "its end", f"it was at {places[first] or 'its end'}"
    if seen.ended.codes[first] is not None:
        place = f"ended, with exit code {seen.ended.codes[first]}"
        state = f"it had {place}"
    sentence = (
        f"rank {first} never reached {collective}, where {ranks_text(waiting)} waited; {state}"
    )
    return f"rank {first}, {place}", sentence


def explain_failure(seen: Observation) -> tuple[str, str, Cause]:
    """The same where some rank ended with an exit code that is not 0."""
    codes = seen.ended.codes
    failed = {rank: code for rank, code in enumerate(codes) if code}
    blamed = [rank for rank in failed if not PEER_LOST.search(seen.workers[rank].err)]
    early = [rank for rank, code in enumerate(codes) if code == 0]
    steps = [len(rank.steps) for rank in seen.workers]
    if not blamed and early:
        rank = min(early, key=steps.__getitem__)
        where = f"rank {rank}, after step {steps[rank]}"
        sentence = f"rank {rank} ended after step {steps[rank]}, while {still_at(seen, failed)}"
        return f"exit codes {codes}", where, with_evaluation(seen, Cause("dead_rank", sentence))
    rank = min(blamed or failed, key=lambda r: (failed[r] > 0, r))
    if seen.ended.first in blamed and failed[rank] > 0:
        rank = seen.ended.first
    where = f"rank {rank}, after step {steps[rank]}"
    return explain_exit(rank, failed[rank], seen, where)


def still_at(seen: Observation, ranks: Iterable[int]) -> str:
    """What those ranks still had to do: the collective that each began last."""
    waits = [
        f"rank {rank} was in {number_of(one)} ({one.collectives[-1]['where']})"
        for rank, one in enumerate(seen.workers)
        if rank in ranks and one.collectives
    ]
    return ", ".join(waits) or "the others still had work"


def with_evaluation(seen: Observation, cause: Cause) -> Cause:
    """The cause of ranks that wait for each other, if it is that only some of them evaluate."""
    alone = [number for number, rank in enumerate(seen.workers) if stuck_in_evaluation(rank)]
    if not alone or len(alone) == len(seen.workers):
        return cause
    return Cause(
        "evaluated_alone",
        f"only {ranks_text(alone)} evaluated after step {len(seen.workers[alone[0]].steps)}, and a "
        f"collective that only some ranks enter does not return: {cause.sentence}",
    )


def stuck_in_evaluation(rank: Rank) -> bool:
    """Whether a rank evaluated last, and is in a collective that training does not call."""
    if not rank.collectives or not rank.evaluations:
        return False
    trained = {one["where"] for step in rank.steps for one in step.collectives}
    evaluated = rank.evaluations[-1].after == len(rank.steps)
    return evaluated and rank.collectives[-1]["where"] not in trained


def explain_exit(rank: int, code: int, seen: Observation, where: str) -> tuple[str, str, Cause]:
    """The same for the rank that failed first, with this exit code."""
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        cause = Cause("dead_rank", f"rank {rank} was killed by {name}")
        return f"rank {rank} died of {name}", where, cause
    error = seen.workers[rank].err
    frames = [f for f in FRAME.finditer(error) if inside(f["file"], seen.root)]
    if frames:
        where += f", {inside(frames[-1]['file'], seen.root)}:{frames[-1]['line']}"
    line = exception_line(error) or "it printed no error"
    name = "crashed" if error.strip() else "dead_rank"
    if seen.ranks[0].workers and NO_GRADIENT.search(error):
        name, line = "graph_cut", f"{line}; {GRAPH_CUT}"
    if UNSCALED.search(error):
        name, line = "loss_not_scaled", NOT_SCALED
    return f"exit code {code} on rank {rank}", where, Cause(name, f"rank {rank}: {line}")


def exception_line(error: str) -> str:
    """The exception that ended a rank; with the source line if it has no message."""
    frames = list(FRAME.finditer(error))
    after = error[frames[-1].end() :].splitlines()[1:] if frames else []  # source, marks, exception
    ended = next((each.strip() for each in after if each.strip() and each[0] != " "), "")
    line = last_line(ended) or last_line(error)
    source = last_line(after[0]) if after and after[0].startswith("    ") else ""
    if source and (":" not in line or line.startswith("AssertionError")):
        line += f", raised by `{source}`"
    return line


def last_line(text: str, pattern: re.Pattern = re.compile(r"\S")) -> str:
    """The last line that matches, without control characters, and not too long."""
    lines = [line.strip() for line in text.splitlines() if pattern.search(line)]
    lines = [line for line in lines if "%|" not in line]
    return re.sub(r"[^\x20-\x7e\xa0-\uffff]", "?", lines[-1])[:400] if lines else ""


def number_of(rank: Rank, index: int = -1) -> str:
    """A rank's collective in words: "gather number 17"."""
    index %= len(rank.collectives)
    op = rank.collectives[index]["op"]
    count = sum(one["op"] == op for one in rank.collectives[: index + 1])
    return f"{op} number {count}"


def stack_place(stack: str, root: Path) -> str:
    """The submission's line, function and collective in a stack that faulthandler wrote, or ""."""
    for thread in re.split(r"\n\s*\n", stack):
        if "in run_script" not in thread:
            continue
        waits = ""
        for frame in FRAME.finditer(thread):
            path = inside(frame["file"], root)
            if path:
                return f"{path}:{frame['line']} in {frame['name']}{waits}"
            if Path(frame["file"]).name in MODULES and frame["name"] not in ("wrapper", "wait"):
                waits = f" (in {frame['name']})"
    return ""


def inside(file: str, root: Path) -> str:
    """A file's path in the submission's folder; "" if it lies elsewhere."""
    path = Path(file)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else ""
