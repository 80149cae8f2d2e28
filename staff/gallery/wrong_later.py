"""Wrong submissions that err only later in the run, or in one rank's or tensor's update."""

from . import mistakes
from .lines import AVERAGE, CLIP, MODEL, SCHEDULE, STEP, before, without
from .variants import Edit, replaced, script
from .wrong_inputs import wrong

RATE = "lr=args.learning_rate,"
RANK_RATE = "lr=args.learning_rate * (2 if args.local_rank == 1 else 1),"
EACH = """\
            for p in model.parameters():
                clip_grad_norm_(p, args.max_grad_norm)
"""
BY_VALUE = """\
            for p in model.parameters():
                p.grad.clamp_(-args.max_grad_norm, args.max_grad_norm)
"""
DECAYED = '"weight_decay": args.weight_decay}'
ADAMW = "torch.optim.AdamW("
TOTAL = "get_linear_schedule_with_warmup(optimizer, args.warmup_steps, total_steps)"
EPOCH = "        for batches in record.steps(data, epoch):\n"
BY_EPOCH = "        scheduler.step()\n"
FORGET = "        optimizer.state.clear()\n"
SHRINK = """\
            for p in model.parameters():
                p.data.mul_(1 - 1e-4)
"""


def averaged_from(name, task, code, cause, note):
    """A variant with our function `code` for average_gradients."""
    edits = (replaced(script(task), code),)
    return wrong(name, task, edits, f"gradients/{cause}", note)


def updated(name, task, edits, verdict, note):
    """A variant with (old, new) replaced where the optimizer is made."""
    return wrong(name, task, tuple(Edit(MODEL, *edit) for edit in edits), verdict, note)


LATE = (
    averaged_from(
        "sums_from_step_16",
        "task2b",
        mistakes.reduce_summed_later,
        "summed",
        "from step 16 on nothing divides by the world size",
    ),
    averaged_from(
        "unsynchronized_from_epoch_2",
        "task2a",
        mistakes.gather_at_first,
        "no_sync",
        "from the second epoch on nothing is averaged",
    ),
    averaged_from(
        "unsynchronized_from_step_16",
        "task2b",
        mistakes.reduce_at_first,
        "no_sync",
        "from step 16 on nothing is averaged",
    ),
    averaged_from(
        "biases_left_out_from_epoch_2",
        "task2b",
        mistakes.reduce_without_biases_later,
        "tensors_left_out",
        "from step 16 on biases are not averaged",
    ),
)
UPDATES = (
    updated(
        "another_rate_on_one_rank",
        "task2b",
        ((RATE, RANK_RATE),),
        "identical/rates_differ",
        "rank 1 trains with twice the learning rate",
    ),
    wrong(
        "clips_each_parameter",
        "task2a",
        (Edit(script("task2a"), CLIP, EACH),),
        "clipping/clipped_per_tensor",
        "every parameter's gradient is clipped by itself",
    ),
    wrong(
        "clips_each_parameter_1",
        "task1",
        (Edit(script("task1"), CLIP, EACH),),
        "clipping/clipped_per_tensor",
        "every parameter's gradient is clipped by itself",
    ),
    wrong(
        "clips_each_parameter_first",
        "task2b",
        (without("task2b", CLIP), before("task2b", AVERAGE, EACH)),
        "clipping/clipped_per_tensor",
        "every rank clips every parameter's gradient by itself, before averaging",
    ),
    wrong(
        "clips_by_value",
        "task1",
        (Edit(script("task1"), CLIP, BY_VALUE),),
        "clipping/clipped_by_value",
        "every element is clipped, not the norm",
    ),
    wrong(
        "schedules_by_epoch",
        "task1",
        (without("task1", SCHEDULE), before("task1", EPOCH, BY_EPOCH)),
        "parameters/rate_per_epoch",
        "scheduler.step() is called once per epoch",
    ),
    updated(
        "schedule_of_all_ranks_steps",
        "task2b",
        ((TOTAL, TOTAL.replace("total_steps)", "total_steps * args.world_size)")),),
        "parameters/wrong_rate",
        "the schedule has as many steps as all ranks make together",
    ),
    updated(
        "decay_in_the_gradients",
        "task1",
        ((ADAMW, "torch.optim.Adam("), (DECAYED, '"weight_decay": 0.01}')),
        "parameters/wrong_decay",
        "Adam adds a weight decay of 0.01 to the gradients; none was asked for",
    ),
    updated(
        "decays_though_not_asked",
        "task3",
        ((DECAYED, '"weight_decay": 0.1}'),),
        "parameters/wrong_decay",
        "a weight decay of 0.1, which nobody asked for",
    ),
    wrong(
        "shrinks_weights_by_hand",
        "task1",
        (Edit(script("task1"), STEP, STEP + SHRINK),),
        "loss/wrong_update",
        "the weights are multiplied by less than 1 after each update",
    ),
    wrong(
        "forgets_moments_each_epoch",
        "task1",
        (before("task1", EPOCH, FORGET),),
        "parameters/wrong_update",
        "every epoch begins with a new optimizer, whose moments are zero",
    ),
    updated(
        "large_epsilon",
        "task1",
        (("eps=args.adam_epsilon", "eps=1e-4"),),
        "parameters/wrong_update",
        "an epsilon of 1e-4, not 1e-8",
    ),
    updated(
        "plain_descent",
        "task1",
        ((ADAMW, "torch.optim.SGD("), ("        eps=args.adam_epsilon,\n", "")),
        "parameters/wrong_update",
        "plain gradient descent instead of AdamW",
    ),
)
WRONG_LATER = (*LATE, *UPDATES)
