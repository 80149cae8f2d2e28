"""Hooks that log every collective of this process, whoever calls it.

They are kernels of torch's dispatcher, so that DistributedDataParallel's collectives are seen too.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

import torch

# Collectives as the process group sees them -> the argument that holds what this rank passes in.
PAYLOAD = {
    **dict.fromkeys(("allreduce_", "broadcast_", "reduce_", "scatter_", "send", "recv_"), 0),
    **dict.fromkeys(("allreduce_coalesced_", "recv_any_source_", "barrier"), 0),
    **dict.fromkeys(("gather_", "allgather_", "_allgather_base_", "reduce_scatter_"), 1),
    **dict.fromkeys(("_reduce_scatter_base_", "alltoall_", "alltoall_base_"), 1),
    **dict.fromkeys(("allgather_coalesced_", "allgather_into_tensor_coalesced_"), 1),
    **dict.fromkeys(("reduce_scatter_tensor_coalesced_",), 1),
}
GIVEN = {"scatter_": 1}  # -> the argument that holds what the root alone passes in
PEER = ("send", "recv_")  # whose next argument is the rank at the other end
REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")


def log_collectives(log: Callable, facts_of: Callable, root: str):
    """Call `log("collective", ...)` before every collective starts.

    `facts_of(tensors)` returns what else is logged of a call that is passed them; `root` is the
    submission's folder, for the line that it was called from. The hooks end when the returned
    library is collected.
    """
    library = torch.library.Library("c10d", "IMPL")
    for name, argument in PAYLOAD.items():
        kernel = logging_kernel(name, argument, log, facts_of, root + os.sep)
        for key in ("AutogradCPU", "AutogradCUDA"):
            library.impl(name, kernel, key, with_keyset=True)
    return library


def logging_kernel(name: str, argument: int, log: Callable, facts_of: Callable, root: str):
    """A kernel that logs the collective `name` and then calls the real one."""
    operator = getattr(torch.ops.c10d, name).default

    def kernel(keyset, *args, **kwargs):
        tensors = list(flat(args[argument])) if name != "barrier" else []
        given = list(flat(args[GIVEN[name]])) if name in GIVEN else tensors
        given = [] if name.startswith("recv") else given  # what is in them is overwritten
        log(
            "collective",
            op=name.strip("_").removesuffix("_base"),
            elements=sum(t.numel() for t in tensors),
            bytes=sum(t.numel() * t.element_size() for t in tensors),
            dtype=str(tensors[0].dtype).removeprefix("torch.") if tensors else "",
            where=calling_line(root),
            reduction=reduction_of(args[2]) if name == "allreduce_" else "",
            **({"peer": args[2]} if name in PEER else {}),
            **facts_of(given),
        )
        return operator.redispatch(keyset & torch._C._after_autograd_keyset, *args, **kwargs)

    return kernel


def reduction_of(operation) -> str:
    """The name of a ReduceOp, as the dispatcher passes it."""
    number = operation.op()
    return REDUCTIONS[number] if number < len(REDUCTIONS) else str(number)


def calling_line(root: str) -> str:
    """The innermost line of the submission that is being run: file:line."""
    frame = sys._getframe(1)
    while frame:
        if frame.f_code.co_filename.startswith(root):
            return f"{frame.f_code.co_filename[len(root) :]}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def flat(tensors) -> Iterator[torch.Tensor]:
    """The tensors in a tensor, or in lists of them."""
    if isinstance(tensors, torch.Tensor):
        yield tensors
        return
    with contextlib.suppress(TypeError):
        for one in tensors:
            yield from flat(one)
