"""Checks of the rows that the ranks read: how many, which, and in which order."""

from collections import Counter
from itertools import combinations
from operator import eq

from grading.checks.graded_task import GradedTask
from grading.results import Cause, Outcome, failed, passed, unknown


def epochs_of_rows(graded: GradedTask) -> list[list[list]]:
    """By epoch and rank: the token ids of the rows read, of the epochs that were seen whole.

    All epochs have as many steps: those of a share, or those before the first evaluation.
    """
    evidence = graded.runs["adamw"]
    steps, wanted = evidence.seen.steps, evidence.setting.epochs
    share, size = -(-graded.rows("adamw") // graded.workers), len(evidence.ranks[0].steps[0].rows)
    usual = {share // size, -(-share // size)} if size else {steps}
    if graded.task.weighted:
        usual = {-(-graded.rows("adamw") // (graded.batch * graded.workers))}
    length = steps // wanted if steps % wanted == 0 else 0
    if length not in usual:
        after = [one.after for rank in evidence.ranks for one in rank.evaluations if one.after]
        length = min(after, default=max(usual))
    return [
        [
            [row[0] for step in rank.steps[start : start + length] for row in step.rows]
            for rank in evidence.ranks
        ]
        for start in range(0, max(steps - length, 0) + 1, length)
    ]


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
        return other_parts(graded, counts) or passed(f"{wanted} rows per step")
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


def other_parts(graded: GradedTask, counts: list[list[int]]) -> Outcome | None:
    """What fails if the ranks of a task with unequal parts read others than asked for."""
    bad = next((step for step, of in enumerate(counts) if of != graded.parts), None)
    if not graded.task.weighted or bad is None:
        return None
    asked = ",".join(map(str, graded.parts))
    return failed(
        f"{asked}, as --batch_sizes asks",
        ",".join(map(str, counts[bad])),
        f"step {bad + 1}, rows of each rank",
        Cause("parts_not_kept", "--batch_sizes has each worker's examples, in the order of ranks"),
    )


def data(graded: GradedTask) -> Outcome:
    """The ranks read disjoint rows that together are the whole training set, in every epoch."""
    epochs, text = epochs_of_rows(graded), ""
    for number, epoch in enumerate(epochs, 1):
        where = f"epoch {number}, all ranks together"
        found = foreign_rows(graded, epoch, where) or wrong_shares(graded, epoch, where)
        if found:
            return found
        read = [row for one in epoch for row in one]
        text = text or f"{len(set(read))} of {graded.rows('adamw')} rows in the first epoch"
    return passed(f"{text}, {len(epochs)} epochs seen")


def foreign_rows(graded: GradedTask, epoch: list[list], where: str) -> Outcome | None:
    """What fails if rows are read that are not in the training set."""
    read = {ids for one in epoch for ids in one}
    others = read - set(graded.known_rows("adamw"))
    if not others or not graded.known_rows("adamw"):
        return None
    dev = others & set(graded.known_rows("adamw", "dev"))
    cause = Cause("dev_rows_trained", "rows of the dev set are trained on, and so is its metric")
    if not dev:
        cause = Cause(
            "unknown_rows",
            "their token ids are not what any row of train.tsv gives as a pair of sentences",
        )
    return failed(
        "rows of the training set",
        f"{len(dev)} rows of the dev set" if dev else f"{len(others)} unknown rows",
        where,
        cause,
    )


def wrong_shares(graded: GradedTask, epoch: list[list], where: str) -> Outcome | None:
    """What fails if the ranks' shares of an epoch overlap, or leave out rows."""
    rows, tail = graded.rows("adamw"), graded.batch * graded.workers
    if graded.workers > 1 and all(set(one) == set(epoch[0]) for one in epoch):
        same = len(graded.runs["adamw"].ranks[0].steps[0].rows)
        return failed(
            "different rows on each rank",
            "the same rows on all ranks",
            where,
            Cause(
                "same_data",
                f"every rank read the same {same} examples in a step: there is no distributed "
                "sampler, or it has the wrong rank or number of replicas",
            ),
        )
    counts = Counter(row for one in epoch for row in one)
    twice, unread = sum(counts.values()) - len(counts), rows - len(counts)
    if twice > most_repeated(graded, epoch, unread):
        return failed(
            "each row once per epoch (except those that fill up the last batches)",
            f"{twice} rows repeated, {unread} never read",
            where,
            Cause("rows_shared", "the ranks' shares overlap, or rows are drawn with replacement"),
        )
    if len(counts) < rows // tail * tail:  # a last batch that is not full may be dropped
        return failed(
            f"all {rows} rows of the training set",
            f"{len(counts)} of them",
            where,
            Cause("rows_missing", f"no rank reads {unread} of the rows in an epoch"),
        )
    return None


def most_repeated(graded: GradedTask, epoch: list[list], unread: int) -> int:
    """How many rows may be read twice: those that fill up the ranks' shares, or the last batch.

    None if rows are left out at the same time; unless shares are filled up, and then cut to whole
    batches.
    """
    rows, tail = graded.rows("adamw"), graded.batch * graded.workers
    fill_shares, fill_batch = -rows % graded.workers, -rows % tail
    if unread:
        return fill_shares if -(-rows // graded.workers) % graded.batch else 0
    last = Counter(row for one in epoch for row in one[: -graded.batch])
    return fill_batch if max(last.values(), default=0) < 2 else fill_shares


def shuffle(graded: GradedTask) -> Outcome:
    """Every epoch reads the rows in a new order."""
    epochs = epochs_of_rows(graded)
    for (first, one), (second, other) in combinations(enumerate(epochs, 1), 2):
        for rank, (before, after) in enumerate(zip(one, other, strict=True)):
            if before and sum(map(eq, before, after)) > len(before) / 2:
                return failed(
                    "a new order in every epoch",
                    f"rows in the order of epoch {first}",
                    f"epoch {second}, rank {rank}",
                    Cause(
                        "not_reshuffled",
                        "epochs repeat an order: shuffle, and call sampler.set_epoch(epoch)",
                    ),
                )
    if len(epochs) < 2:
        return unknown("fewer than two epochs were seen")
    return passed("a new order in every epoch")
