"""Which stage of a pipeline has which layers, and the flags of a pipeline."""

from common.errors import UserError
from common.flags import Flag
from common.tasks import SCRIPTS
from common.uneven import numbers

FLAGS = [
    Flag("layers", str, "balanced", "layers of each stage: 3,3,3,3"),
    Flag("num_microbatches", int, 1, "micro-batches that each batch is divided into", 1),
    Flag("stage_ms", str, "", "F,B: sleep so many ms in each forward and backward of a stage"),
]
GRID_FLAGS = [
    *FLAGS,
    Flag("pipeline", int, 2, "stages of each replica of the model", 1),
    Flag("data", int, 2, "replicas of the model, each with its own part of the data", 1),
]


def is_divided(args):
    """Whether the task's workers hold parts of one model."""
    task = SCRIPTS.get(args.task)
    return bool(task and task.divided)


def parts_of(args):
    """How many workers a model is divided over: 1, unless the task divides it."""
    if not is_divided(args):
        return 1
    return getattr(args, "pipeline", args.world_size)


def bounds_of(text, stages, count):
    """(first, last + 1) of each stage's layers, where the model has `count`.

    `text` is the value of --layers; balanced stages have equally many, or one more, the first ones.
    Raises UserError where the layers do not fit the stages.
    """
    if stages > count:
        raise UserError(
            f"{stages} stages: the model has only {count} layers, and each stage needs at least "
            f"one; start at most {count} workers, or choose a model with more layers, such as "
            f"--model_name_or_path tiny:{stages}"
        )
    sizes = [count // stages + (stage < count % stages) for stage in range(stages)]
    if text != "balanced":
        sizes = numbers("layers", text, int, 1)
    if sum(sizes) != count:
        raise UserError(
            f"--layers {text}: sums to {sum(sizes)}, but the model has {count} layers; give "
            f"{stages} numbers that sum to {count}, or leave --layers out"
        )
    ends = [sum(sizes[: stage + 1]) for stage in range(stages)]
    return list(zip([0, *ends], ends, strict=False))


def seconds_of_stage(text):
    """(forward, backward) that --stage_ms asks a stage to sleep, in seconds; zeros without it."""
    if not text:
        return 0.0, 0.0
    forward, backward = numbers("stage_ms", text, float, 0)
    return forward / 1000, backward / 1000


def problems_with_stages(args):
    """Every problem with the flags of a pipeline; None stands for an invalid value."""
    if not is_divided(args) or not hasattr(args, "layers"):
        return []
    problems = []
    stages, replicas = parts_of(args), getattr(args, "data", 1)
    if None not in (stages, replicas, args.world_size) and stages * replicas != args.world_size:
        problems.append(
            f"--pipeline {stages} --data {replicas}: need {stages * replicas} workers, but "
            f"--world_size is {args.world_size}"
        )
    chunks = getattr(args, "chunks", 1)
    parts = stages and chunks and stages * chunks
    wanted = {
        "layers": (int, 1, parts, f"{parts}, one for each stage"),
        "stage_ms": (float, 0, 2, "two: of a forward and a backward"),
    }
    for name, (kind, least, count, what) in wanted.items():
        text = getattr(args, name)
        if text in ("", "balanced"):
            continue
        try:
            found = len(numbers(name, text, kind, least))
            if count and found != count:
                problems.append(f"--{name} {text}: has {found} numbers; give {what}")
        except UserError as problem:
            problems.append(str(problem))
    if args.batch_sizes or args.max_batch or args.split == "auto":
        problems.append(
            "--batch_sizes, --max_batch, --split auto: all stages of a pipeline read the same "
            "rows; leave them out, or use task 5"
        )
    count = args.num_microbatches
    if SCRIPTS[args.task].fills_pipeline and None not in (count, stages) and count < stages:
        problems.append(
            f"--num_microbatches {count}: fewer than the {stages} stages, so this schedule cannot "
            f"fill the pipeline; give at least {stages}, or use task7/gpipe.py"
        )
    if None not in (chunks, count, stages):
        problems += problems_with_chunks(args, chunks, count, stages)
    return problems


def problems_with_chunks(args, chunks, count, workers):
    """Every problem with several stages for each worker, where `count` micro-batches are."""
    interleaved = getattr(args, "schedule", "") == "interleaved"
    if interleaved and chunks == 1:
        return [
            "--schedule interleaved: each worker has several stages; give --chunks 2, and a model "
            f"with at least {2 * workers} layers, such as --model_name_or_path tiny:{2 * workers}"
        ]
    if chunks > 1 and not interleaved:
        return [f"--chunks {chunks}: is for --schedule interleaved; give it, or leave --chunks out"]
    if chunks > 1 and workers == 1:
        return [f"--chunks {chunks}: one worker has no others to wait for; start two, or more"]
    if interleaved and count % max(1, count // workers):
        return [
            f"--num_microbatches {count}: the interleaved schedule goes through them in rounds of "
            f"equally many; give a multiple of the {workers} workers"
        ]
    return []
