"""Why a run did not end well: which rank, which collective, which line of the submission."""

import re
import signal
from pathlib import Path

from grading.checks.gradient_causes import ranks_text
from grading.results import Cause

PEER_LOST = re.compile(
    r"gloo/transport|closed by peer|reset by peer|Timed out waiting|DistNetworkError|Broken pipe|"
    r"lost rank|rank \d+ (?:failed|is lost|has|stops in|stopped)|DistBackendError|refused",
    re.I,
)
FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+),? in (?P<name>\S+)')
UNFINISHED = re.compile(r"TODO\([^\n]*")
MODULES = ("distributed_c10d.py", "c10d_logger.py")


def explain_end(seen, limits):
    """(what was got, where, Cause) of a run that was ended, or in which a rank failed."""
    ended = seen.ended
    for rank, one in enumerate(seen.ranks):
        todo = UNFINISHED.search(one.err)
        if todo:
            line = last_line(one.err, UNFINISHED)
            return "a part that is not written yet", f"rank {rank}", Cause("todo", line)
    if ended.reason == "memory":
        text = f"more than {limits.memory * len(seen.ranks) / 2**30:.1f} GiB for all ranks"
        return text, "all ranks", Cause("memory", f"it uses {text} of memory, far beyond its need")
    if ended.reason in ("idle", "time"):
        return explain_hang(seen, limits)
    return explain_failure(seen)


def explain_hang(seen, limits):
    """The same for ranks that wait in vain, or go on for ever."""
    ended = seen.ended
    spent = limits.idle if ended.reason == "idle" else limits.seconds
    what = "no rank did anything" if ended.reason == "idle" else "it was still running"
    got = f"{what} {'for' if ended.reason == 'idle' else 'after'} {spent:g} s; all were killed"
    counts = [len(rank.collectives) for rank in seen.ranks]
    last = max(range(len(counts)), key=counts.__getitem__)
    behind = [rank for rank, count in enumerate(counts) if count < counts[last]]
    places = [whereabouts(stack, seen.root) for stack in ended.stacks]
    if not counts[last]:
        told = "; ".join(f"rank {r}: {p}" for r, p in enumerate(places) if p)
        return got, told or "before any collective", Cause("hang", f"no collective began; {told}")
    if not behind:
        kinds = {rank.collectives[-1]["op"] for rank in seen.ranks}
        op = seen.ranks[last].collectives[-1]
        same = f"all ranks entered {number_of(seen.ranks[last])}, and none came back"
        differ = "the ranks are in different collectives: " + ", ".join(
            f"rank {r} in {number_of(rank)} ({rank.collectives[-1]['where']})"
            for r, rank in enumerate(seen.ranks)
        )
        return got, op["where"], Cause("hang", same if len(kinds) == 1 else differ)
    first = min(behind, key=counts.__getitem__)
    missed = number_of(seen.ranks[last], counts[first])
    waiting = [rank for rank in range(len(counts)) if rank not in behind]
    there = places[first] or "its end"
    if ended.codes[first] is not None:
        there = f"over, with exit code {ended.codes[first]}"
    line = seen.ranks[last].collectives[counts[first]]["where"]
    sentence = (
        f"rank {first} never entered {missed} ({line}), where {ranks_text(waiting)} waited; "
        f"it was {'' if there.startswith('over') else 'at '}{there}"
    )
    return got, f"rank {first}, {there}", Cause("hang", sentence)


def explain_failure(seen):
    """The same where some rank ended with an exit code that is not 0."""
    codes = seen.ended.codes
    failed = [rank for rank, code in enumerate(codes) if code]
    blamed = [rank for rank in failed if not PEER_LOST.search(seen.ranks[rank].err)]
    early = [rank for rank, code in enumerate(codes) if code == 0]
    steps = [len(rank.steps) for rank in seen.ranks]
    if not blamed and early:
        rank = min(early, key=steps.__getitem__)
        where = f"rank {rank}, after step {steps[rank]}"
        sentence = (
            f"rank {rank} ended by itself after step {steps[rank]}; the others still had work"
        )
        return f"exit codes {codes}", where, Cause("dead_rank", sentence)
    rank = min(blamed or failed, key=lambda r: (codes[r] > 0, r))
    if seen.ended.first in blamed and codes[rank] > 0:
        rank = seen.ended.first
    code, error = codes[rank], seen.ranks[rank].err
    where = f"rank {rank}, after step {steps[rank]}"
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"rank {rank} died of {name}", where, Cause("dead_rank", f"rank {rank}: {name}")
    frames = [f for f in FRAME.finditer(error) if inside(f["file"], seen.root)]
    if frames:
        where += f", {inside(frames[-1]['file'], seen.root)}:{frames[-1]['line']}"
    line = last_line(error) or "it printed no error"
    name = "crashed" if error.strip() else "dead_rank"
    return f"exit code {code} on rank {rank}", where, Cause(name, f"rank {rank}: {line}")


def last_line(text, pattern=re.compile(r"\S")):
    """The last line that matches, without control characters, and not too long."""
    lines = [line.strip() for line in text.splitlines() if pattern.search(line)]
    lines = [line for line in lines if "%|" not in line]
    return re.sub(r"[^\x20-\x7e\xa0-\uffff]", "?", lines[-1])[:400] if lines else ""


def number_of(rank, index=-1):
    """A rank's collective in words: "gather number 17"."""
    index %= len(rank.collectives)
    op = rank.collectives[index]["op"]
    count = sum(one["op"] == op for one in rank.collectives[: index + 1])
    return f"{op} number {count}"


def whereabouts(stack, root):
    """file:line in function, and in which collective, of a stack that faulthandler wrote."""
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


def inside(file, root):
    """A file's path in the submission's folder; "" if it lies elsewhere."""
    path = Path(file)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else ""
