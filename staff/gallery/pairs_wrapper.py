"""Pairs for task 3: each wrong one with a right one like it."""

from .lines import (
    BACKWARD,
    CLIP,
    EVALUATION,
    FORWARD,
    IMPORT_DDP,
    OPTIMIZER,
    WRAP,
    after,
    before,
    without,
)
from .variants import Edit, Variant, script

TASK = "task3"
SCRIPT = script(TASK)
PLAIN_WRAP = "    model = DistributedDataParallel(model)\n"
INNER = "    model.bert = DistributedDataParallel(model.bert)\n"
UNUSED = "    model = DistributedDataParallel(model, find_unused_parameters=True)\n"
COPIED = WRAP.replace("(model,", '(__import__("copy").deepcopy(model),')
ALWAYS_OFF = """\
                with model.no_sync():
                    loss = model(**batch).loss * weight
                    loss.backward()
"""
OFF_BUT_LAST = """\
                half = len(batch["labels"]) // 2
                with model.no_sync():
                    first = {key: tensor[:half] for key, tensor in batch.items()}
                    (model(**first).loss / 2).backward()
                loss = model(**{key: tensor[half:] for key, tensor in batch.items()}).loss / 2
                loss.backward()
"""
DIVIDES = "            for p in model.parameters():\n                p.grad /= world.size\n"
HOOK = '''\
def own_hook(_, bucket):
    """Average a bucket as DistributedDataParallel would."""
    done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return done.then(lambda total: total.value()[0] / dist.get_world_size())


'''
SUM_HOOK = HOOK.replace(" / dist.get_world_size()", "").replace("Average", "Add up")
REGISTER = "    model.register_comm_hook(None, own_hook)\n"
ONE_BY_ONE = "range(0, len(rows), data.eval_batch_size)"
ONE = "rows[at : at + data.eval_batch_size]"
ROW_BY_ROW = (
    Edit(EVALUATION, ONE_BY_ONE, "range(len(rows))"),
    Edit(EVALUATION, ONE, "[rows[at]]"),
    Edit(SCRIPT, WRAP, PLAIN_WRAP),
)


def hooked(text):
    """Task 3 with a communication hook of its own."""
    return (
        before(TASK, IMPORT_DDP, "import torch.distributed as dist\n"),
        before(TASK, "def main(args, world):\n", text),
        Edit(SCRIPT, WRAP, PLAIN_WRAP + REGISTER),
    )


def wrong(name, edits, cause, note, check="gradients"):
    """A variant that fails one check."""
    return Variant(name, TASK, edits, (check,), cause, note)


WRONG = (
    wrong(
        "no_sync_left_on",
        (
            Edit(SCRIPT, WRAP, PLAIN_WRAP),
            without(TASK, BACKWARD),
            Edit(SCRIPT, FORWARD, ALWAYS_OFF),
        ),
        "no_sync",
        "every pass is made under no_sync()",
    ),
    wrong(
        "wraps_the_encoder",
        (Edit(SCRIPT, WRAP, INNER),),
        "tensors_left_out",
        "only model.bert is wrapped, the classifier is not",
    ),
    wrong(
        "optimizer_of_another_copy",
        (without(TASK, WRAP), after(TASK, OPTIMIZER, COPIED)),
        "not_updated",
        "a copy is wrapped after the optimizer was made: it updates the original",
        "loss",
    ),
    wrong(
        "divides_after_the_wrapper",
        (before(TASK, CLIP, DIVIDES),),
        "divided_twice",
        "DistributedDataParallel has divided, and the loop divides by N once more",
    ),
    wrong(
        "hook_does_not_divide",
        hooked(SUM_HOOK),
        "summed",
        "a communication hook that adds up, and does not divide",
    ),
)
RIGHT = (
    Variant(
        "no_sync_but_for_the_last",
        TASK,
        (
            Edit(SCRIPT, WRAP, PLAIN_WRAP),
            without(TASK, BACKWARD),
            Edit(SCRIPT, FORWARD, OFF_BUT_LAST),
        ),
        note="two passes per step, the first of them under no_sync()",
    ),
    Variant(
        "finds_unused_parameters",
        TASK,
        (Edit(SCRIPT, WRAP, UNUSED),),
        note="find_unused_parameters=True where none is unused",
    ),
    Variant(
        "wraps_after_the_optimizer",
        TASK,
        (without(TASK, WRAP), after(TASK, OPTIMIZER, WRAP)),
        note="the model is wrapped after the optimizer was made, of the same parameters",
    ),
    Variant(
        "evaluates_row_by_row",
        TASK,
        ROW_BY_ROW,
        note="rows are evaluated one by one past the wrapper; ranks have different numbers",
    ),
    Variant(
        "hook_divides",
        TASK,
        hooked(HOOK),
        note="a communication hook that does what DistributedDataParallel does without",
    ),
)
