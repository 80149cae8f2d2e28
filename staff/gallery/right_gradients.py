"""Right submissions that average the gradients differently from the solution."""

from . import averages
from .lines import OPTIMIZER, after, with_torch
from .variants import Function, Variant, replaced, script

HOOKS = '''\
PENDING = []


def start_when_ready(model):
    """Start a parameter's all_reduce as soon as its gradient is there, during backward."""
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(
            lambda p: PENDING.append((p, dist.all_reduce(p.grad, async_op=True)))
        )


def average_gradients(_, world):
    while PENDING:
        p, work = PENDING.pop(0)
        work.wait()
        p.grad /= world.size
'''


def averaging(name, task, code, note):
    """A variant with our function `code` for average_gradients."""
    extra = (with_torch(task),) if task == "task2b" else ()
    return Variant(name, task, (replaced(script(task), code), *extra), note=note)


GRADIENTS = (
    averaging(
        "gathers_per_tensor",
        "task2a",
        averages.gather_per_tensor,
        "a gather and a scatter for every tensor",
    ),
    averaging(
        "gathers_flat",
        "task2a",
        averages.gather_flat,
        "one gather and one scatter of all gradients in one vector",
    ),
    averaging(
        "gathers_to_last_rank",
        "task2a",
        averages.gather_to_last_rank,
        "the root is the last rank",
    ),
    averaging(
        "gathers_divided_first",
        "task2a",
        averages.gather_divided_first,
        "divided by the world size before the sum, in small buckets",
    ),
    averaging(
        "gathers_asynchronously",
        "task2a",
        averages.gather_asynchronous,
        "all gathers at once, then all scatters at once",
    ),
    averaging(
        "reduces_per_tensor",
        "task2b",
        averages.reduce_per_tensor,
        "an all_reduce for every tensor",
    ),
    averaging(
        "reduces_flat",
        "task2b",
        averages.reduce_flat,
        "one all_reduce of all gradients in one vector",
    ),
    averaging(
        "reduces_small_buckets",
        "task2b",
        averages.reduce_small_buckets,
        "small buckets, multiplied by 1/N",
    ),
    averaging(
        "reduces_asynchronously",
        "task2b",
        averages.reduce_asynchronous,
        "every tensor's all_reduce is started, last one first, and then waited for",
    ),
    averaging(
        "reduces_divided_first",
        "task2b",
        averages.reduce_divided_first,
        "divided by the world size before the sum",
    ),
    averaging(
        "reduces_with_avg",
        "task2b",
        averages.reduce_with_avg,
        "ReduceOp.AVG, and no division",
    ),
    averaging(
        "reduces_in_double",
        "task2b",
        averages.reduce_in_double,
        "summed in float64; every p.grad is a new tensor",
    ),
    averaging(
        "reduce_scatter_all_gather",
        "task2b",
        averages.reduce_scatter_all_gather,
        "all_reduce in its two halves: reduce_scatter, then all_gather",
    ),
    Variant(
        "reduces_during_backward",
        "task2b",
        (
            Function(script("task2b"), "average_gradients", HOOKS),
            after("task2b", OPTIMIZER, "    start_when_ready(model)\n"),
        ),
        note="hooks start every all_reduce during backward; they are waited for after it",
    ),
)
