"""What must be the same for one run to go on from another's checkpoint."""

import hashlib
import json

from common.deepspeed_config import ACCUMULATED, MICRO
from common.tasks import SCRIPTS
from common.workers.world import PER_WORKER_FLAGS

# Flags that change nothing in the steps that a run takes.
WITHOUT_EFFECT = {
    "task",
    "timeout",
    "allow_nan",
    "count_traffic",
    "trace",
    "report_to",
    "time_all_reduce",
    "save_steps",
    "save_strategy",
    "save_total_limit",
    "resume",
    "other_world_size",
    "init_method",
    "split",
    "stage_ms",
    "rebalance_steps",
    "slow",
    "max_batch",
}
SIZES = ("--world_size", "--per_gpu_train_batch_size", "--gradient_accumulation_steps")
ALTERED = (*SIZES, "--batch_sizes", "--layers", "--pipeline", "--data")  # by other workers


def identity(args, model, data):
    """Name -> value of what a run's steps follow from, with digests for its data and model.

    To be taken before the first step: a model's forward pass and saving it set some configuration.
    """
    ignored = PER_WORKER_FLAGS | WITHOUT_EFFECT
    flags = {f"--{name}": value for name, value in vars(args).items() if name not in ignored}
    settings = json.loads(flags.pop("--settings", "{}"))  # of task 8; the sizes are flags, too
    flags |= {k: v for k, v in settings.items() if k not in (MICRO, ACCUMULATED)}
    config = model.config.to_dict().items()
    config = {k: v for k, v in config if k not in ("_name_or_path", "transformers_version")}
    text = json.dumps(config, sort_keys=True, default=str)
    return {
        "the task": args.task,
        **flags,
        **{f"the data of {split}": rows.digest for split, rows in data.splits.items()},
        "the model's configuration": hashlib.sha256(text.encode()).hexdigest(),
    }


def differences(theirs, ours, other_world_size):
    """A line for each value in which a checkpoint's identity differs from this run's.

    With `other_world_size` the number of workers may differ while the total batch is the same.
    """
    names = [name for name in ours if name in theirs and theirs[name] != ours[name]]
    lines = [f"{name} was {theirs[name]!r} and is now {ours[name]!r}" for name in names]
    if not names:
        return []
    sizes = set(names) <= set(ALTERED) and total_batch(theirs) == total_batch(ours)
    if sizes and other_world_size:
        return []
    if sizes:
        return [
            *lines,
            "the total batch is the same, so weights, optimizer and position fit, but the random "
            "states of dropout do not: the losses will differ from those of an uninterrupted run, "
            "unless dropout is 0; --other_world_size goes on with new ones",
        ]
    return [*lines, "give the same values, or leave --resume out to start afresh"]


def total_batch(identity):
    """Examples per step of all workers together."""
    workers, worker_batch, accumulated = (identity[name] for name in SIZES)
    task = SCRIPTS.get(identity["the task"])
    if task and task.divided:  # each replica of the model reads one batch
        workers //= identity.get("--pipeline", workers)
    parts = [int(size) for size in identity.get("--batch_sizes", "").split(",") if size]
    return (sum(parts) or workers * worker_batch) * accumulated
