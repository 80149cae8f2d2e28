"""Checks of the rows that the ranks read: how many, whose, and in which order."""

from collections import Counter

from grading.checks.gradient_causes import ranks_text
from grading.results import Cause, failed, passed, unknown


def sequences(task):
    """By rank: the rows it trained on in the long run, in order."""
    ranks = task.runs["adamw"].ranks
    return [[row for step in rank.steps for row in step.rows] for rank in ranks]


def first_epoch(task):
    """By rank: the rows of its first epoch, which ends with its share, or with an evaluation."""
    share, epoch = -(-task.rows("adamw") // task.workers), []
    for rank, read in zip(task.runs["adamw"].ranks, sequences(task), strict=True):
        steps = min((one.after for one in rank.evaluations if one.after), default=len(rank.steps))
        epoch.append(read[: min(share, sum(len(step.rows) for step in rank.steps[:steps]))])
    return epoch


def batch(task):
    """The ranks together take the total batch for each update."""
    evidence, wanted = task.runs["adamw"], task.batch * task.workers
    counts = [
        [len(rank.steps[step].rows) for rank in evidence.ranks]
        for step in range(min(evidence.seen.steps, 3))
    ]
    if not any(map(any, counts)):
        return unknown("no rows were seen: the model is not called with input_ids")
    bad = next((step for step, of in enumerate(counts) if sum(of) != wanted), None)
    if bad is None:
        return passed(f"{wanted} rows a step")
    own, passes = counts[bad][0], len(evidence.ranks[0].steps[bad].forwards)
    total = sum(counts[bad])
    text = f"total batch is {total}: {own} per worker times {task.workers}"
    if passes > 1:
        text += f" (in {passes} passes)"
    return failed(
        f"{wanted}: {task.batch} per worker times {task.workers}",
        str(total),
        f"step {bad + 1}, {ranks_text([0])}",
        Cause(
            "batch_not_divided",
            f"{text}; --per_gpu_train_batch_size is one worker's, for one update",
        ),
    )


def data(task):
    """The ranks read disjoint rows that together are the whole training set, in every epoch."""
    rows, epoch = task.rows("adamw"), first_epoch(task)
    if task.workers > 1 and all(set(one) == set(epoch[0]) for one in epoch):
        same = len(task.runs["adamw"].ranks[0].steps[0].rows)
        return failed(
            "rows of its own for each rank",
            "the same rows on all ranks",
            "the first epoch",
            Cause(
                "same_data",
                f"every rank read the same {same} examples at step 1: no distributed sampler, or "
                "one that was told the wrong rank or number of replicas",
            ),
        )
    counts = Counter(row for one in epoch for row in one)
    twice = sum(n - 1 for n in counts.values())
    tail = task.batch * task.workers  # a last batch that is not full may be left out
    unread = rows - len(counts)
    if twice > max(task.workers, tail - 1 if len(counts) == rows else 0):
        return failed(
            "each row once an epoch (but a few, where they do not divide by the ranks)",
            f"{twice} rows more than once, {unread} never",
            "the first epoch, all ranks together",
            Cause("rows_shared", "the ranks' shares overlap, or rows are drawn with replacement"),
        )
    if len(counts) < rows // tail * tail:
        return failed(
            f"all {rows} rows of the training set",
            f"{len(counts)} of them",
            "the first epoch, all ranks together",
            Cause("rows_missing", f"{unread} rows of an epoch are read by no rank"),
        )
    return passed(f"{len(counts)} of {rows} rows in the first epoch, {twice} of them twice")


def shuffle(task):
    """Every epoch goes through the rows in a new order."""
    rows = task.rows("adamw")
    share, least = -(-rows // task.workers), rows // task.workers
    for rank, one in enumerate(sequences(task)):
        for lag in {share, least, least // task.batch * task.batch}:
            pairs = list(zip(one, one[lag:], strict=False))
            if pairs and sum(a == b for a, b in pairs) > len(pairs) / 2:
                return failed(
                    "a new order in every epoch",
                    f"rows that come back every {lag}, in the same order",
                    f"epoch 2, rank {rank}",
                    Cause(
                        "not_reshuffled",
                        "every epoch has the order of the first: call sampler.set_epoch(epoch), "
                        "and shuffle",
                    ),
                )
    if task.runs["adamw"].seen.steps * task.batch < 1.5 * share:
        return unknown("less than two epochs were seen")
    return passed("another order in every epoch")
