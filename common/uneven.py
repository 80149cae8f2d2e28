"""Unequal parts of a batch: how many examples each worker reads, and the flags that say so."""

from common.errors import UserError
from common.tasks import SCRIPTS


# SOLUTION(task5): share `total` out in proportion to the speeds, by the largest remainder
def in_proportion(total, speeds):
    """Whole numbers that sum to `total`, as close to proportional to the speeds as can be.

    Each share is rounded down. What is left goes, one each, to those that lost most by that.
    """
    exact = [total * speed / sum(speeds) for speed in speeds]
    parts = [int(share) for share in exact]
    by_loss = sorted(range(len(parts)), key=lambda rank: parts[rank] - exact[rank])
    for rank in by_loss[: total - sum(parts)]:
        parts[rank] += 1
    return parts


def split_batch(total, speeds, most=None):
    """Examples of a batch for each worker: in_proportion, at least 1, and at most `most` of each.

    What a limit adds or leaves goes where it makes the slowest worker least slow. A batch with
    fewer examples than workers leaves some without any. Raises UserError where the
    workers cannot hold `total` examples.
    """
    size = len(speeds)
    most = list(most or [total] * size)
    if sum(most) < total:
        raise UserError(
            f"--max_batch {','.join(map(str, most))}: sums to {sum(most)}, fewer than the {total} "
            "examples of a batch; lower --per_gpu_train_batch_size, or raise --max_batch"
        )
    least = int(total >= size)
    parts = in_proportion(total, speeds)
    parts = [max(least, min(part, limit)) for part, limit in zip(parts, most, strict=True)]

    def seconds_with(rank, more):
        return (parts[rank] + more) / speeds[rank]

    while sum(parts) > total:
        slowest = (rank for rank in range(size) if parts[rank] > least)
        parts[max(slowest, key=lambda rank: seconds_with(rank, 0))] -= 1
    while sum(parts) < total:
        open_ones = (rank for rank in range(size) if parts[rank] < most[rank])
        parts[min(open_ones, key=lambda rank: seconds_with(rank, 1))] += 1
    return parts


def first_sizes(args):
    """How many examples of each batch every worker reads at first, by rank."""
    if args.batch_sizes:
        return numbers("batch_sizes", args.batch_sizes, int, 1)
    if not args.max_batch:
        return [args.per_gpu_train_batch_size] * args.world_size
    total = args.per_gpu_train_batch_size * args.world_size
    return split_batch(total, [1] * args.world_size, most_held(args))


def most_held(args):
    """The most examples of a batch that each worker can hold, by rank; None for no limit."""
    return numbers("max_batch", args.max_batch, int, 1) if args.max_batch else None


def is_exact(args):
    """Whether step k of all workers reads exactly the rows that one worker's step k reads."""
    task = SCRIPTS.get(args.task)
    asked = args.batch_sizes or args.max_batch or args.split == "auto"
    return bool(asked or (task and task.weighted))


def unweighted(args):
    """What to say of a task that means to average equal parts, and is given unequal ones."""
    task = SCRIPTS.get(args.task)
    if task and not task.weighted and (args.split == "auto" or len(set(first_sizes(args))) > 1):
        return (
            f"unequal parts of a batch: task {task.title} takes the mean of the workers' "
            "means, which is not the mean over the examples; task 5 weights them"
        )
    return ""


def numbers(name, text, kind, least):
    """The comma-separated numbers of a flag; raises UserError with what is allowed."""
    try:
        found = [kind(word) for word in text.split(",")]
        if all(least <= number < float("inf") for number in found):
            return found
    except ValueError:
        pass
    what = "whole numbers" if kind is int else "numbers"
    raise UserError(f"--{name} {text}: must be {what} of at least {least}, separated by commas")


def problems_with_split(args, given):
    """Every problem with the flags of unequal parts; `given` are the names of flags given."""
    problems = []
    for name, kind in (("batch_sizes", int), ("max_batch", int), ("slow", float)):
        text = getattr(args, name)
        try:
            found = numbers(name, text, kind, 1) if text else []
        except UserError as problem:
            problems.append(str(problem))
            continue
        if text and args.world_size and len(found) != args.world_size:
            problems.append(
                f"--{name} {text}: has {len(found)} numbers for {args.world_size} worker(s); give "
                "one for each, in the order of their ranks"
            )
    if args.batch_sizes and "per_gpu_train_batch_size" in given:
        problems.append(
            "--batch_sizes and --per_gpu_train_batch_size: both set the batch; give one of them"
        )
    if args.batch_sizes and args.split == "auto":
        problems.append(
            "--batch_sizes and --split auto: both set the workers' parts; give one of them, and "
            "with --split auto --per_gpu_train_batch_size, a worker's part at first"
        )
    return problems + (problems_with_limits(args) if args.max_batch and not problems else [])


def problems_with_limits(args):
    """What is wrong with --max_batch, where all flags are valid one by one."""
    if not args.world_size or not args.per_gpu_train_batch_size:
        return []
    try:
        sizes = first_sizes(args)
    except UserError as problem:
        return [str(problem)]
    over = [f"rank {r}" for r, most in enumerate(most_held(args) or []) if sizes[r] > most]
    return [
        f"--batch_sizes {args.batch_sizes}: is more than --max_batch {args.max_batch} allows for "
        f"{', '.join(over)}; lower it there"
    ] * bool(over)
