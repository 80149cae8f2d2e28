"""Checks of the rows that the ranks read: how many, which, and in which order."""

from collections import Counter

from grading.checks.graded_task import GradedTask
from grading.results import Cause, Outcome, failed, passed, unknown


def sequences(graded: GradedTask) -> list[list]:
    """By rank: the rows it trained on in the long run, in order."""
    ranks = graded.runs["adamw"].ranks
    return [[row for step in rank.steps for row in step.rows] for rank in ranks]


def first_epoch(graded: GradedTask) -> list[list]:
    """By rank: the rows of its first epoch, which ends after its share, or at an evaluation."""
    share, epoch = -(-graded.rows("adamw") // graded.workers), []
    for rank, read in zip(graded.runs["adamw"].ranks, sequences(graded), strict=True):
        steps = min((one.after for one in rank.evaluations if one.after), default=len(rank.steps))
        epoch.append(read[: min(share, sum(len(step.rows) for step in rank.steps[:steps]))])
    return epoch


def batch(graded: GradedTask) -> Outcome:
    """The ranks together read the total batch for each update."""
    evidence, wanted = graded.runs["adamw"], graded.batch * graded.workers
    counts = [
        [len(rank.steps[step].rows) for rank in evidence.ranks]
        for step in range(min(evidence.seen.steps, 3))
    ]
    if not any(map(any, counts)):
        return unknown("no rows were seen: the model is not called with input_ids")
    bad = next((step for step, of in enumerate(counts) if sum(of) != wanted), None)
    if bad is None:
        return passed(f"{wanted} rows per step")
    own, passes = counts[bad][0], len(evidence.ranks[0].steps[bad].forwards)
    total = sum(counts[bad])
    text = f"the total batch is {total}: {own} per worker times {graded.workers}"
    if passes > 1:
        text += f" (in {passes} passes)"
    return failed(
        f"{wanted}: {graded.batch} per worker times {graded.workers}",
        str(total),
        f"step {bad + 1}, rank 0",
        Cause(
            "batch_not_divided",
            f"{text}; --per_gpu_train_batch_size is the batch of one worker, for one update",
        ),
    )


def data(graded: GradedTask) -> Outcome:
    """The ranks read disjoint rows that together are the whole training set, in every epoch."""
    rows, epoch = graded.rows("adamw"), first_epoch(graded)
    if graded.workers > 1 and all(set(one) == set(epoch[0]) for one in epoch):
        same = len(graded.runs["adamw"].ranks[0].steps[0].rows)
        return failed(
            "different rows on each rank",
            "the same rows on all ranks",
            "the first epoch",
            Cause(
                "same_data",
                f"every rank read the same {same} examples at step 1: there is no distributed "
                "sampler, or it has the wrong rank or number of replicas",
            ),
        )
    counts = Counter(row for one in epoch for row in one)
    twice = sum(n - 1 for n in counts.values())
    tail = graded.batch * graded.workers  # a last batch that is not full may be dropped
    unread = rows - len(counts)
    if twice > max(graded.workers, tail - 1 if len(counts) == rows else 0):
        return failed(
            "each row once per epoch (except a few, if they do not divide by the ranks)",
            f"{twice} rows repeated, {unread} never read",
            "the first epoch, all ranks together",
            Cause("rows_shared", "the ranks' shares overlap, or rows are drawn with replacement"),
        )
    if len(counts) < rows // tail * tail:
        return failed(
            f"all {rows} rows of the training set",
            f"{len(counts)} of them",
            "the first epoch, all ranks together",
            Cause("rows_missing", f"no rank reads {unread} of the rows in an epoch"),
        )
    return passed(f"{len(counts)} of {rows} rows in the first epoch, {twice} of them twice")


def shuffle(graded: GradedTask) -> Outcome:
    """Every epoch reads the rows in a new order."""
    rows = graded.rows("adamw")
    share, least = -(-rows // graded.workers), rows // graded.workers
    for rank, one in enumerate(sequences(graded)):
        for lag in {share, least, least // graded.batch * graded.batch}:
            pairs = list(zip(one, one[lag:], strict=False))
            if pairs and sum(a == b for a, b in pairs) > len(pairs) / 2:
                return failed(
                    "a new order in every epoch",
                    f"rows that repeat every {lag}, in the same order",
                    f"epoch 2, rank {rank}",
                    Cause(
                        "not_reshuffled",
                        "every epoch repeats the first epoch's order: shuffle, and call "
                        "sampler.set_epoch(epoch)",
                    ),
                )
    if graded.runs["adamw"].seen.steps * graded.batch < 1.5 * share:
        return unknown("fewer than two epochs were seen")
    return passed("a new order in every epoch")
