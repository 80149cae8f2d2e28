"""Pairs about the loss, the clipping and the update: each wrong one with a right one like it."""

from .lines import BACKWARD, CLIP, FORWARD, MODEL, OPTIMIZER, SCHEDULE, STEP, before, without
from .variants import Edit, Variant, script

SCRIPT = script("task1")
EARLY = (without("task1", SCHEDULE), before("task1", STEP, SCHEDULE))
ONE_BY_ONE = CLIP.replace("norm)", "norm, foreach=False)")
LARGEST = CLIP.replace("norm)", 'norm, norm_type=float("inf"))')
EUCLIDEAN = CLIP.replace("norm)", "norm, norm_type=2.0)")
TORCH = before("task1", "from torch.nn.utils", "import torch\n")
TWICE = BACKWARD.replace("()", "(retain_graph=True)") + BACKWARD
HALVES = BACKWARD.replace("loss.backward()", "(loss / 2).backward(retain_graph=True)") + (
    BACKWARD.replace("loss.", "(loss / 2).")
)
SUM = """\
                labels = batch.pop("labels")
                logits = model(**batch).logits
                loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
"""
MEAN = SUM.replace('batch.pop("labels")', 'batch["labels"]')
MEAN += "                loss = loss / len(labels)\n"
DECAY = '"weight_decay": args.weight_decay}'
PLAIN = '{"params": plain, "weight_decay": 0.0}'
SCHEDULER = "get_linear_schedule_with_warmup(optimizer, args.warmup_steps, total_steps)"
WARM = SCHEDULER.replace("args.warmup_steps", "total_steps // 10")
LAMBDA = "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / total_steps)"
FREEZE = "    model.bert.embeddings.requires_grad_(False)\n"
THAW = FREEZE + FREEZE.replace("False", "True")


def wrong(name, edits, check, cause, note):
    """A variant of task 1 that fails one check."""
    return Variant(name, "task1", edits, (check,), cause, note)


def right(name, edits, note):
    """A variant of task 1 that is right."""
    return Variant(name, "task1", edits, note=note)


WRONG = (
    wrong(
        "schedules_twice",
        (before("task1", SCHEDULE, SCHEDULE),),
        "parameters",
        "wrong_rate",
        "scheduler.step() is called twice per update",
    ),
    wrong(
        "clips_by_largest_element",
        (Edit(SCRIPT, CLIP, LARGEST),),
        "clipping",
        "scaled",
        "the norm that is clipped is the largest element",
    ),
    wrong(
        "backward_twice",
        (Edit(SCRIPT, BACKWARD, TWICE),),
        "gradients",
        "scaled",
        "backward() is called twice on one loss",
    ),
    wrong(
        "sums_the_loss",
        (TORCH, Edit(SCRIPT, FORWARD, SUM)),
        "loss",
        "loss_scaled",
        "the loss is the sum over the batch, not its mean",
    ),
    wrong(
        "warms_up",
        (Edit(MODEL, SCHEDULER, WARM),),
        "parameters",
        "wrong_rate",
        "a tenth of the steps warms up, which nobody asked for",
    ),
    wrong(
        "freezes_embeddings",
        (before("task1", OPTIMIZER, FREEZE),),
        "gradients",
        "tensors_left_out",
        "the embeddings are frozen",
    ),
)
RIGHT = (
    right("schedules_before_the_update", EARLY, "scheduler.step() before optimizer.step()"),
    right("clips_one_by_one", (Edit(SCRIPT, CLIP, ONE_BY_ONE),), "clips without foreach"),
    right("clips_by_norm_2", (Edit(SCRIPT, CLIP, EUCLIDEAN),), "names the norm's type"),
    right(
        "backward_in_halves",
        (Edit(SCRIPT, BACKWARD, HALVES),),
        "backward() is called twice, on half of the loss each",
    ),
    right(
        "sums_and_divides_the_loss",
        (TORCH, Edit(SCRIPT, FORWARD, MEAN)),
        "the loss is the sum over the batch, divided by its rows",
    ),
    right(
        "decays_nothing",
        (Edit(MODEL, DECAY, '"weight_decay": 0.0}'),),
        "weight decay is 0, whatever the flag says",
    ),
    right(
        "decays_by_default",
        (
            Edit(MODEL, DECAY, '"weight_decay": 0.01}'),
            Edit(MODEL, PLAIN, PLAIN.replace("0.0", "0.01")),
        ),
        "torch's default weight decay of 0.01, on all tensors",
    ),
    right("own_schedule", (Edit(MODEL, SCHEDULER, LAMBDA),), "the schedule is a LambdaLR"),
    right(
        "freezes_and_thaws",
        (before("task1", OPTIMIZER, THAW),),
        "the embeddings are frozen, and made trainable again before the first step",
    ),
)
