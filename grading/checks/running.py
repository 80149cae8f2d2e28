"""Checks of the run itself: that it ends well, and which collectives carry the gradients."""

from itertools import product

from common.tasks import SCRIPTS, Task
from grading.checks.borders import between_parts
from grading.checks.carried import payload_problem
from grading.checks.evidence import Evidence
from grading.checks.exit_causes import explain_end
from grading.checks.graded_task import GradedTask
from grading.checks.observation import BOOKKEEPING, Rank, Step
from grading.checks.sharded import explain_traffic, travelled
from grading.checks.wording import ranks_text
from grading.pretraining_inputs import PretrainingSetting
from grading.results import Cause, Outcome, failed, passed, unknown

# A collective of the course's -> the operations that carry it, as the process group sees them.
CARRIERS = {
    "all_reduce": ("allreduce", "allreduce_coalesced", "reduce_scatter"),
    "all_gather": ("allgather", "allgather_coalesced", "allgather_into_tensor_coalesced"),
    "reduce_scatter": ("reduce_scatter", "reduce_scatter_tensor_coalesced"),
}
BESIDE = {"all_reduce": ("allgather",)}  # all_reduce is also reduce_scatter, then all_gather
FEW = 0.05  # of the gradients' elements: with fewer, another collective carries no gradients
NOTES = {"all_reduce": " (or reduce_scatter and all_gather)"}


def runs(graded: GradedTask) -> Outcome:
    """The documented command ends with exit code 0 on every rank, after training."""
    for setting, evidence in graded.runs.items():
        ended, ranks = evidence.seen.ended, evidence.ranks
        if ended.reason or any(ended.codes):
            got, where, cause = explain_end(evidence.seen, graded.limits)
            return failed("exit code 0 on every rank", got, f"setting {setting}, {where}", cause)
        broken = next((rank.broken for rank in ranks if rank.broken), "")
        if broken:
            return failed(
                "a record that only the grader's probe has written",
                f"other content in it ({broken})",
                f"setting {setting}",
                Cause("tampered", "the script writes to file descriptors that it did not open"),
            )
        if any(rank.steps for rank in ranks):
            continue
        if any(rank.names for rank in ranks):
            return unknown("no update by an optimizer of torch.optim was seen")
        return failed(
            "training",
            "exit code 0 without a forward pass of a model",
            f"setting {setting}",
            Cause("no_training", "the script ends without training anything"),
        )
    return passed("exit code 0 on every rank")


def collectives(graded: GradedTask) -> Outcome:
    """The gradients travel by the collectives that the task asks for, and by no others."""
    task = SCRIPTS[graded.task.strategy]
    if task.divided:
        return between_parts(graded)
    if not graded.runs["plain"].seen.steps:
        return unknown("no update was seen on every rank")
    found = {}
    for setting, evidence in graded.runs.items():
        for rank, number in product(range(evidence.size), range(evidence.seen.steps)):
            found = evidence.elements_by_op(number, rank)
            cause = explain_collectives(task, evidence, rank, number)
            if cause:
                one = evidence.ranks[rank]
                ddp = ["DistributedDataParallel"] if one.ddp else []
                at = f"step {number + 1}, {ranks_text([rank])}{source(one.steps[number])}"
                return failed(
                    expected_of(task),
                    ", ".join([*sizes_text(found), *ddp]) or "no collective of gradients",
                    f"setting {setting}, {at}",
                    cause,
                )
    if task.sharded:
        found, _ = travelled(graded.runs["plain"], 0, 0)
    return passed(", ".join(sizes_text(found)))


def explain_collectives(task: Task, evidence: Evidence, rank: int, number: int) -> Cause | None:
    """What is wrong with a rank's collectives at a step (from 0); None if nothing is."""
    if task.sharded:
        return explain_traffic(task, evidence, rank, number)
    one, found = evidence.ranks[rank], evidence.elements_by_op(number, rank)
    by_hand = calls_itself(task) and not (task.weighted and one.ddp)  # which weights them, too
    explain = wrong_by_hand if by_hand else wrong_by_wrapper
    wrong = explain(task, one, found, one.steps[number])
    if wrong:
        late = evidence.elements_by_op(number, rank, late=True)
        return Cause("wrong_collective" if found or late or one.ddp else "no_sync", wrong)
    begun = [c["backward"] for c in gradients_of(one.steps[number])]
    if by_hand and task.overlaps and not any(begun):
        return Cause(
            "not_overlapped",
            "all collectives of the gradients begin after the backward pass: start each bucket's "
            "as soon as its last gradient is ready, and wait for them before the update",
        )
    wrong = wrong_payload(task, evidence, number, rank)
    if isinstance(evidence.setting, PretrainingSetting):
        wrong = wrong or reduced_too_often(evidence, number, rank, evidence.setting.accumulated)
    return Cause("wrong_payload", wrong) if wrong else None


def calls_itself(task: Task) -> bool:
    """Whether a task's script calls the collectives: its own, or its base's at another moment."""
    return task.by_hand or bool(task.base and SCRIPTS[task.base].by_hand)


def gradients_of(step: Step) -> list[dict]:
    """The collectives of a step that may carry gradients."""
    return [c for c in step.collectives if c["elements"] > BOOKKEEPING]


def wrong_payload(task: Task, evidence: Evidence, number: int, rank: int) -> str:
    """What is wrong with what the collectives that a task asks for carry; "" if nothing is."""
    problems = (
        payload_problem(evidence, number, rank, name, carriers(name)) for name in task.collectives
    )
    return next(filter(None, problems), "")


def reduced_too_often(evidence: Evidence, number: int, rank: int, accumulated: int) -> str:
    """What is wrong if gradients are reduced more than once in an update; "" if they are not."""
    step = evidence.ranks[rank].steps[number]
    tries = len(step.forwards) // accumulated
    times = sum(evidence.elements_by_op(number, rank).values()) / max(1, step.held)
    if times <= (1 + FEW) * max(1, tries):
        return ""
    return f"the gradients are reduced {times:.3g} times in an update: once, after its last pass"


def expected_of(task: Task) -> str:
    """The collectives that a task asks for."""
    if task.sharded:
        return f"{' and '.join(task.collectives)}, and nothing else"
    if not calls_itself(task):
        return "DistributedDataParallel, and nothing by hand"
    notes = "".join(NOTES.get(name, "") for name in task.collectives)
    return f"{' and '.join(task.collectives)} of all gradients{notes}, and nothing else"


def sizes_text(elements_by_op: dict[str, int]) -> list[str]:
    """Operations with their sizes."""
    return [f"{op} of {count:,} elements" for op, count in elements_by_op.items()]


def source(step: Step) -> str:
    """Where the first collective of gradients' size was called."""
    lines = [c["where"] for c in gradients_of(step) if c["where"]]
    return f", {lines[0]}" if lines else ""


def carriers(name: str) -> tuple[str, ...]:
    """The operations that carry a collective."""
    return CARRIERS.get(name, (name,))


def wrong_by_hand(task: Task, rank: Rank, elements_by_op: dict[str, int], step: Step) -> str:
    """What is wrong with the collectives of a task that calls them itself; "" if nothing is."""
    asked = " and ".join(task.collectives)
    if rank.ddp:
        return f"the model is wrapped in DistributedDataParallel; the task asks for {asked}"
    allowed = {op for name in task.collectives for op in (*carriers(name), *BESIDE.get(name, ()))}
    few = sum(rank.sizes) * FEW  # losses, times or predictions
    others = {op for op, count in elements_by_op.items() if count > few} - allowed
    if others:
        return f"task {task.title} asks for {asked}, not for {'/'.join(sorted(others))}"
    half = step.held / 2
    lacking = [
        name
        for name in task.collectives
        if max(elements_by_op.get(op, 0) for op in carriers(name)) < half
    ]
    return f"no {' and no '.join(lacking)} of the gradients" if lacking else ""


def wrong_by_wrapper(_task: Task, rank: Rank, _: dict[str, int], step: Step) -> str:
    """What is wrong with the collectives of a task that leaves them to the wrapper."""
    if not rank.ddp:
        return "the model is not wrapped in DistributedDataParallel"
    by_hand = [c for c in gradients_of(step) if not c["backward"]]
    by_hand = [c for c in by_hand if c["op"] != "broadcast"]  # of the weights, by the wrapper
    if sum(c["elements"] for c in by_hand) > sum(rank.sizes) / 2:
        return f"gradients are synchronized by hand as well ({by_hand[0]['op']})"
    return ""
