"""Checks of tasks whose workers hold parts of one model: the parts, and their passes."""

from collections.abc import Iterator
from itertools import product

from common.tasks import Task
from common.units import PER_WEIGHT
from grading import inputs
from grading.checks.evidence import Evidence
from grading.checks.graded_task import GradedTask
from grading.checks.observation import Forward, Rank
from grading.checks.replicas import holders_of, is_piece
from grading.checks.sharded import ROOM
from grading.checks.sums_of_parts import LAYER
from grading.checks.wording import ranks_text
from grading.results import Cause, Outcome, failed, passed, unknown

LETTERS = {True: "F", False: "B"}  # a forward or a backward pass


def divided(graded: GradedTask) -> Outcome:
    """Every worker holds its own part of the model, and no other's."""
    evidence, texts = graded.runs["plain"], []
    expected = "on each worker its own part of the model alone"
    for number, rank in enumerate(evidence.ranks):
        first = number * len(rank.workers)
        cause = twice_held(graded.task, rank, first)
        if cause:
            return failed(expected, "tensors of other parts, too", f"replica {number}", cause)
        for worker, one in enumerate(rank.workers, first):
            most = ROOM * PER_WEIGHT["weights"] * own_elements(one, len(rank.workers))
            held = max(step.memory.get("weights", 0) for step in one.steps)
            if held > most:
                got = f"{held:,} bytes of weights, of which {most:,.0f} are expected at most"
                sentence = (
                    "a part is a view of the whole tensor, or the optimizer has the whole model: "
                    "keep copies of this worker's part alone"
                )
                return failed(expected, got, f"rank {worker}", Cause("not_divided", sentence))
            texts.append(f"{held:,}")
    return passed(f"bytes of weights by rank: {', '.join(texts)}")


def twice_held(task: Task, replica: Rank, first: int) -> Cause | None:
    """A tensor that several workers of a replica hold whole, though they are to divide it."""
    for name, held in holders_of(replica.workers).items():
        whole = [w for w, at in held if not is_piece(replica.workers[w], at)]
        if task.schedule and len(whole) > 1:
            holders = ranks_text([first + worker for worker in whole])
            sentence = f"{holders} hold {name}: each stage keeps its own layers alone, the first "
            return Cause("not_divided", sentence + "the embeddings, and the last the classifier")
        if not task.schedule and whole and is_matrix(name):
            sentence = f"each worker has the whole of {name}: keep this rank's rows or columns"
            return Cause("not_divided", sentence)
    return None


def is_matrix(name: str) -> bool:
    """Whether a tensor is a matrix of a layer, by its name."""
    return bool(LAYER.search(name)) and name.endswith("weight") and "LayerNorm" not in name


def own_elements(worker: Rank, size: int) -> float:
    """How many weights a worker's part of the model has; `size` workers share a matrix."""
    pieces = worker.pieces or [False] * len(worker.sizes)
    return sum(n / (size if cut else 1) for n, cut in zip(worker.sizes, pieces, strict=True))


def order(graded: GradedTask) -> Outcome:
    """The stages run their passes in the order of the schedule: they keep as many micro-batches."""
    evidence, task, most = graded.runs["plain"], graded.task, []
    for number, stage, worker, replica in stages_of(evidence):
        passes = replica.workers[stage].steps[number].passes
        asked = 1 if task.schedule == "naive" else inputs.MICROBATCHES
        count = min(asked, len(evidence.ranks[0].steps[number].rows))
        expected, kept = kept_by(task.schedule, count, stage, graded.divided_over), keeps(passes)
        found = sum(each is not None for each in passes)
        if (found, kept) != (count, expected):
            cause = explain_order(task, found, count, kept, expected)
            shown = " ".join(LETTERS[each is not None] for each in passes)
            text = f"{count} micro-batches, at most {expected} of them kept at a time"
            where = f"step {number + 1}, rank {worker} (stage {stage}): {shown}"
            return failed(text, f"{found}, {kept} kept", where, cause)
        most.append(kept)
    if not most:
        return unknown("no update was seen on every rank")
    kept = ", ".join(map(str, most[: len(evidence.seen.workers)]))
    return passed(f"micro-batches kept by rank: {kept}")


def stages_of(evidence: Evidence) -> Iterator[tuple[int, int, int, Rank]]:
    """(step, stage, rank, its replica) of all workers in every step."""
    for number, (at, replica) in product(range(evidence.seen.steps), enumerate(evidence.ranks)):
        for stage in range(len(replica.workers)):
            yield number, stage, at * len(replica.workers) + stage, replica


def kept_by(schedule: str, count: int, stage: int, stages: int) -> int:
    """How many of `count` micro-batches a stage keeps at most."""
    return {"naive": 1, "gpipe": count, "1f1b": min(count, stages - stage)}[schedule]


def keeps(passes: list[Forward | None]) -> int:
    """The largest number of forward passes whose backward pass has not come."""
    kept = most = 0
    for one in passes:
        kept += 1 if one else -1
        most = max(most, kept)
    return most


def explain_order(task: Task, found: int, count: int, kept: int, expected: int) -> Cause:
    """The Cause of an order of passes that is not the schedule's."""
    if found != count:
        text = f"a batch is computed in {found} passes, not in {count} micro-batches"
    elif kept > expected:
        text = "it goes on forward where the schedule goes back"
        text += ": all forward, then all back, is GPipe's order" if kept == count else ""
    elif kept == 1:
        text = "each micro-batch goes back before the next goes forward, so the other stages wait"
    else:
        text = "it goes back before all micro-batches have gone forward"
    return Cause("wrong_order", f"{text} (task {task.title})")
