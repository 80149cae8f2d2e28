"""Pairs: averages that go past the task's collectives, and those that go through them."""

from . import channels
from .lines import OPTIMIZER, after, before, with_torch
from .variants import MAIN, Variant, replaced, script

BY_BACKEND = '''\
def mean_by_backend(flat, world):
    """Average through gloo's own object, which torch.distributed does not see."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend.allreduce([flat]).wait()
    flat /= world.size


'''


START = "    for p in model.parameters():\n        dist.broadcast(p.data, 0)\n"
UNUSED = "    model.unused = torch.nn.Parameter(torch.zeros(300, 300))\n"


def past(name, task, code, note):
    """A variant that averages rightly, but by other means."""
    helper = (
        (before(task, MAIN, BY_BACKEND),) if "mean_by_backend" in code.__code__.co_names else ()
    )
    extra = (with_torch(task),) if task == "task2b" else ()
    edits = (replaced(script(task), code), *helper, *extra)
    return Variant(name, task, edits, ("collectives",), "wrong_payload", note)


def fair(name, task, code, note, *more):
    """A variant whose gradients go through the task's collectives, with something besides."""
    extra = (with_torch(task),) if task == "task2b" else ()
    return Variant(name, task, (replaced(script(task), code), *extra, *more), note=note)


WRONG = (
    past(
        "half_gathered_rest_by_backend",
        "task2a",
        channels.half_gathered,
        "gloo's own object averages; zeros of half the size are gathered and scattered",
    ),
    past(
        "zeros_gathered_rest_by_backend",
        "task2a",
        channels.zeros_gathered,
        "gloo's own object averages; zeros of the full size are gathered and scattered",
    ),
    past(
        "noise_reduced_rest_by_backend",
        "task2b",
        channels.noise_reduced,
        "gloo's own object averages; random numbers of the full size are all-reduced",
    ),
    past(
        "mean_reduced_again",
        "task2b",
        channels.mean_reduced,
        "gloo's own object averages; then the mean, alike everywhere, is averaged once more",
    ),
    past(
        "noise_scattered_rest_by_backend",
        "task2a",
        channels.noise_scattered,
        "gradients are gathered, random numbers scattered; gloo's own object averages",
    ),
    past(
        "averages_through_files",
        "task2a",
        channels.by_files,
        "gradients travel in files, zeros of half the size by gather and scatter",
    ),
    past(
        "averages_through_sockets",
        "task2b",
        channels.by_sockets,
        "gradients travel through a socket, zeros of half the size by all_reduce",
    ),
    past(
        "averages_through_objects",
        "task2b",
        channels.by_objects,
        "gradients travel by all_gather_object, ones of half the size by all_reduce",
    ),
)
RIGHT = (
    fair(
        "reduces_through_group_object",
        "task2b",
        channels.by_group_object,
        "calls the process group's allreduce, which is what dist.all_reduce calls",
    ),
    fair(
        "writes_norms_to_files",
        "task2a",
        channels.norms_in_files,
        "writes the norm of the gradients to a file, and waits at a barrier",
    ),
    fair(
        "gathers_padded_slices",
        "task2a",
        channels.padded_slices,
        "slices padded to one length, divided before they are gathered",
    ),
    fair(
        "reduces_metrics_besides",
        "task2b",
        channels.with_metrics,
        "all_gather_object and all_reduce of numbers to print, besides the gradients",
    ),
    Variant(
        "broadcasts_the_start",
        "task2b",
        (after("task2b", OPTIMIZER, START),),
        note="the weights are broadcast from rank 0 before the first step",
    ),
    Variant(
        "has_unused_parameters",
        "task2a",
        (before("task2a", OPTIMIZER, UNUSED),),
        note="the model has parameters that the loss does not reach: their .grad is None",
    ),
)
