"""How a run goes on: which checkpoint it takes, and its data from where that one was saved."""

import json
from itertools import islice
from pathlib import Path

from common.checkpoint_files import COMPLETE, complete_ones, finished, step_of
from common.errors import UserError
from common.identity import differences
from common.random_states import restore

from torch.nn.parallel import DistributedDataParallel

SORTING_PASSES = 4  # after which DistributedDataParallel no longer changes its buckets


def choose(args, resume, identity):
    """The checkpoint to go on from, as its `complete` describes it, or None; rank 0 asks.

    `resume` is a folder, "auto" or "". Raises UserError for a checkpoint of another run.
    """
    output = Path(args.output_dir)
    newest = max(complete_ones(output), default=None, key=step_of)
    if not resume and newest and not finished(output):
        print(
            f"{newest} is a checkpoint of a run that did not finish; this run starts afresh "
            "and replaces it at its own first checkpoint: stop it and add --resume to go on"
        )
    if not resume:
        return None
    folder = newest if resume == "auto" else Path(resume)
    if not folder:
        print(f"--resume: {output} holds no complete checkpoint, so the run starts afresh")
        return None
    try:
        facts = json.loads((folder / COMPLETE).read_text())
    except (OSError, ValueError):
        raise UserError(
            f"--resume {folder}: is not a complete checkpoint, as it has no readable file "
            f"`{COMPLETE}`; give a folder named checkpoint-<step>, or auto for the newest one"
        ) from None
    problems = differences(facts["identity"], identity, args.other_world_size)
    if problems:
        raise UserError(f"{folder} is of another run:" + "".join(f"\n- {p}" for p in problems))
    print(f"resuming from {folder}")
    return {**facts, "folder": str(folder)}


def batches_after(checkpoints, data, epoch):
    """An epoch's batches, without those that the run has gone through before it was resumed.

    A new iterator draws from the random states. So after a checkpoint from the middle of an epoch
    they are restored when there is one, and after one from between epochs, before.
    """
    states, checkpoints.random_states = checkpoints.random_states, None
    progress, device = checkpoints.progress, checkpoints.world.device
    done = progress.position if epoch == progress.epoch + 1 else 0
    if states and isinstance(checkpoints.wrapped, DistributedDataParallel):
        passes = progress.step * checkpoints.args.gradient_accumulation_steps
        sort_buckets(checkpoints.wrapped, data, epoch, passes)
    if states and not done:
        restore(states, device)
    batches = iter(data.batches.epoch(epoch))
    next(islice(batches, done, done), None)
    if states and done:
        restore(states, device)
    return batches


def sort_buckets(model, data, epoch, passes):
    """Go through as many backward passes as DistributedDataParallel needs to sort its buckets.

    The run that was cut had done so, and with three workers or more the order of a sum depends
    on where in its bucket an element is.
    """
    batch, _ = next(iter(data.batches.epoch(epoch)))[0]
    for _ in range(min(passes, SORTING_PASSES)):
        model(**batch).loss.backward()
    model.zero_grad()
