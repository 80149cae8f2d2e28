"""The lines of the solution's scripts that the gallery's edits replace; each occurs once."""

import inspect

from .variants import Edit, script

ZERO = "            optimizer.zero_grad()\n"
FORWARD = "                loss = model(**batch).loss * weight\n"
BACKWARD = "                loss.backward()\n"
AVERAGE = "            average_gradients(model, world)\n"
CLIP = "            clip_grad_norm_(model.parameters(), args.max_grad_norm)\n"
STEP = "            optimizer.step()\n"
SCHEDULE = "            scheduler.step()\n"
EVALUATE = "        record.end_epoch(epoch, evaluate(model, data, world))\n"
OPTIMIZER = "    optimizer, scheduler = make_optimizer(model, args, data.total_steps)\n"
WRAP = "    model = DistributedDataParallel(model, static_graph=True)\n"
IMPORT_DIST = "import torch.distributed as dist\n"
IMPORT_DDP = "from torch.nn.parallel import DistributedDataParallel\n"
IMPORT_CLIP = "from torch.nn.utils import clip_grad_norm_\n"

LOADER, RECORD = "common/data/loader.py", "common/record/record.py"
FIRST_LOSSES = "common/record/first_losses.py"
MODEL = "common/models/optimizer.py"
TRAFFIC, EVALUATION = "common/record/traffic.py", "common/models/evaluate.py"
SAMPLER = "DistributedSampler(features, world.size, world.rank, seed=args.seed)"
MINIBATCH = 'self.say(f"minibatch {step}: loss {loss}")'


def without(task, line):
    """A task's script without a line of its loop."""
    return Edit(script(task), line, "")


def before(task, line, new):
    """A task's script with `new` before a line."""
    return Edit(script(task), line, new + line)


def after(task, line, new):
    """A task's script with `new` after a line."""
    return Edit(script(task), line, line + new)


def clipped_first(task):
    """A task's script that clips every rank's own gradients, then averages them."""
    return without(task, CLIP), before(task, AVERAGE, CLIP)


def with_torch(task):
    """A task's script that imports torch, too."""
    return before(task, IMPORT_DIST, "import torch\n")


def unwrapped():
    """Task 3 without DistributedDataParallel, and with torch.distributed at hand."""
    return without("task3", WRAP), Edit(script("task3"), IMPORT_DDP, IMPORT_DIST)


def sampled_by(sampler):
    """The loader with our class `sampler` in place of DistributedSampler."""
    batches = "class TrainingBatches(EqualParts):\n"
    return (
        Edit(LOADER, batches, f"{inspect.getsource(sampler)}\n\n{batches}"),
        Edit(LOADER, SAMPLER, SAMPLER.replace("DistributedSampler", sampler.__name__)),
    )
