"""Checks of the run itself: that it ends well, and which collectives carry the gradients."""

from grading.checks.exit_causes import explain_end
from grading.checks.gradient_causes import ranks_text
from grading.checks.observation import BOOKKEEPING
from grading.results import Cause, failed, passed, unknown


def runs(task):
    """The documented command ends with exit code 0 on every rank, after training."""
    for setting, evidence in task.runs.items():
        ended = evidence.seen.ended
        if ended.reason or any(ended.codes):
            got, where, cause = explain_end(evidence.seen, task.limits)
            return failed("exit code 0 on every rank", got, f"setting {setting}, {where}", cause)
        broken = next((rank.broken for rank in evidence.ranks if rank.broken), "")
        if broken:
            return failed(
                "a record that the grader's probe has written",
                f"something else in it ({broken})",
                f"setting {setting}",
                Cause("tampered", "the script writes into files that it did not open"),
            )
        if not any(rank.steps for rank in evidence.ranks):
            if any(rank.names for rank in evidence.ranks):
                return unknown("no update by an optimizer of torch.optim was seen")
            return failed(
                "training",
                "exit code 0 without a pass of a model",
                f"setting {setting}",
                Cause("no_training", "the script ends without training anything"),
            )
    return passed("exit code 0 on every rank")


def collectives(task):
    """The gradients travel as the task demands, and in no other way."""
    evidence = task.runs["plain"]
    total = sum(evidence.ranks[0].sizes)
    for rank, one in enumerate(evidence.ranks):
        for step in range(evidence.seen.steps):
            moved = evidence.moved(step, rank)
            wrong = WANTED[task.strategy](one, moved, total, one.steps[step])
            if wrong:
                expected, sentence = wrong
                parts = [f"{op} of {n:,} elements" for op, n in moved.items()]
                ddp = ["DistributedDataParallel"] if one.ddp else []
                return failed(
                    expected,
                    ", ".join([*parts, *ddp]) or "no collective of gradients",
                    f"step {step + 1}, {ranks_text([rank])}{source(one.steps[step])}",
                    Cause("wrong_collective", sentence),
                )
    return passed(", ".join(f"{op} of {n:,} elements" for op, n in moved.items()))


def source(step):
    """Where the first collective of gradients' size was called."""
    lines = [c["where"] for c in step.collectives if c["elements"] > BOOKKEEPING and c["where"]]
    return f", {lines[0]}" if lines else ""


def gather_and_scatter(rank, moved, total, _):
    expected = "gather and scatter of all gradients, and nothing else"
    if rank.ddp:
        return expected, "the model is wrapped in DistributedDataParallel: that is task 3"
    others = set(moved) - {"gather", "scatter"}
    if others:
        return expected, f"task 2(a) is to use gather and scatter; {'/'.join(others)} is not one"
    lacking = [op for op in ("gather", "scatter") if moved.get(op, 0) < total / 2]
    return (expected, f"no {' and no '.join(lacking)} of the gradients") if lacking else None


def by_all_reduce(rank, moved, total, _):
    expected = "all_reduce of all gradients (or reduce_scatter and all_gather)"
    if rank.ddp:
        return expected, "the model is wrapped in DistributedDataParallel: that is task 3"
    others = set(moved) - {"allreduce", "allreduce_coalesced", "reduce_scatter", "allgather"}
    if others:
        return expected, f"task 2(b) is to use all_reduce; {'/'.join(others)} is not one"
    most = max(moved.get(op, 0) for op in ("allreduce", "allreduce_coalesced", "reduce_scatter"))
    return (expected, "no all_reduce of the gradients") if most < total / 2 else None


def by_wrapper(rank, _, total, step):
    expected = "DistributedDataParallel, and nothing by hand"
    if not rank.ddp:
        return expected, "the model is not wrapped in DistributedDataParallel"
    by_hand = [c for c in step.collectives if c["elements"] > BOOKKEEPING and not c["backward"]]
    by_hand = [c for c in by_hand if c["op"] != "broadcast"]  # of the weights, by the wrapper
    if sum(c["elements"] for c in by_hand) > total / 2:
        return expected, f"gradients are synchronised by hand as well ({by_hand[0]['op']})"
    return None


WANTED = {"task2a": gather_and_scatter, "task2b": by_all_reduce, "task3": by_wrapper}
