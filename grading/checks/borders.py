"""The check of what travels between the parts of one model, and between its replicas."""

from common.tasks import Task
from grading.checks.divided import stages_of
from grading.checks.graded_task import GradedTask
from grading.checks.observation import BOOKKEEPING, TRANSFERS, Rank
from grading.checks.sharded import FEW, ROOM
from grading.checks.sums_of_parts import sums_problem, sums_text
from grading.checks.wording import ranks_text
from grading.results import Cause, Outcome, failed, passed, unknown


def between_parts(graded: GradedTask) -> Outcome:
    """Between the parts of the model travels what the task asks for, and nothing else."""
    if not graded.runs["plain"].seen.steps:
        return unknown("no update was seen on every rank")
    explain = border_problem if graded.task.schedule else sum_problem
    for setting, evidence in graded.runs.items():
        for number, stage, worker, replica in stages_of(evidence):
            if any(each.after == number for each in replica.workers[stage].evaluations):
                continue  # these travel through the stages, too
            cause = explain(graded.task, replica, number, stage, worker)
            if cause:
                where = f"setting {setting}, step {number + 1}, rank {worker}"
                return failed(expected_of(graded.task), "other transfers", where, cause)
    first = graded.runs["plain"].ranks[0].workers[0]
    return passed(border_text(first) if graded.task.schedule else sums_text(first))


def expected_of(task: Task) -> str:
    """What a task sends."""
    if not task.schedule:
        return "in each layer two sums forward and two back, by all_reduce"
    mean = ", and all_reduce of a stage's gradients" if "all_reduce" in task.collectives else ""
    return f"the activations sent to the stage after, their gradients to the one before{mean}"


def border_text(first: Rank) -> str:
    """What crosses the first border in a step, in words."""
    count = outputs_of(first, 0)
    return f"{8 * count:,} bytes cross the first border in a step: 2 t h x 4, t h = {count:,}"


def outputs_of(worker: Rank, number: int) -> int:
    """The elements of a stage's activations in a step."""
    return sum(one.outputs for one in worker.steps[number].passes if one)


def sum_problem(_task: Task, replica: Rank, number: int, stage: int, _worker: int) -> Cause | None:
    """What is wrong with the sums of the parts' outputs and gradients; None if nothing is."""
    return sums_problem(replica.workers[stage], number)


def border_problem(task: Task, replica: Rank, number: int, stage: int, worker: int) -> Cause | None:
    """What is wrong with what a stage sends at a step (from 0); None if nothing is."""
    workers, one = replica.workers, replica.workers[stage]
    calls = [c for c in one.collectives if c["step"] == number and c["elements"] > BOOKKEEPING]
    sent = dict.fromkeys((worker - 1, worker + 1), 0)
    for call in calls:
        if call["op"] == "send":
            sent[call["peer"]] = sent.get(call["peer"], 0) + call["bytes"]
    ahead = 4 * outputs_of(one, number) if stage < len(workers) - 1 else 0
    back = 4 * outputs_of(workers[stage - 1], number) if stage else 0
    for what, peer, expected in (
        ("activations", worker + 1, ahead),
        ("gradients", worker - 1, back),
    ):
        found = sent.pop(peer)
        if not (1 - FEW) * expected <= found <= ROOM * expected:
            sentence = f"{found:,} bytes are sent to rank {peer}, where {what} have {expected:,}"
            return Cause("wrong_border", sentence)
    if any(sent.values()):
        others = [peer for peer, count in sent.items() if count]
        return Cause("wrong_border", f"{ranks_text(others)} are sent to, which are no neighbors")
    return beside_borders(task, one, calls, sum(n for rank in workers for n in rank.sizes))


def beside_borders(task: Task, one: Rank, calls: list[dict], whole: int) -> Cause | None:
    """What is wrong with the other collectives of a stage, in a model of so many elements."""
    found: dict[str, int] = {}
    for call in calls:
        if call["op"] not in TRANSFERS:
            found[call["op"]] = found.get(call["op"], 0) + call["elements"]
    own, reduced = sum(one.sizes), 0
    if "all_reduce" in task.collectives:
        reduced = found.pop("allreduce", 0)
        if reduced < (1 - FEW) * own:
            sentence = f"{reduced:,} of the {own:,} elements of its gradients are averaged over "
            name = "no_sync" if reduced < FEW * own else "wrong_payload"
            return Cause(name, sentence + "the replicas")
        if reduced > ROOM * own:
            sentence = f"{reduced:,} elements are averaged; the stage's gradients have {own:,}"
            return Cause("wrong_payload", sentence)
    others = [op for op, count in found.items() if count > FEW * whole]
    if others:
        sentence = f"task {task.title} asks for {' and '.join(task.collectives)}, not for "
        return Cause("wrong_collective", sentence + "/".join(sorted(others)))
    return None
