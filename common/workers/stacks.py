"""Where a worker is in its script, read off a stack."""

import os
import sysconfig
import traceback

import torch

PASSES = {  # functions in which DistributedDataParallel waits for collectives
    "_engine_run_backward": "the backward pass",
    "_pre_forward": "the forward pass",
}
COLLECTIVES = ("torch.distributed.distributed_c10d", "torch.futures")  # the latter waits for one
WAITS = {  # modules of ours in which a worker waits for the others
    "common.workers.rendezvous": "the exchange with all ranks",
    "common.workers.heartbeat": "the wait for all ranks to finish",
    "common.workers.gathering": "",
    "common.workers.notes": "",  # what it is called from
    "common.record.notice": "a request to rank 0",
    "common.workers.world": "",  # the same
}
PACKAGES = os.path.dirname(os.path.dirname(torch.__file__))
LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), PACKAGES, "<")


def stack_of(error):
    """The stack that `error` came through, innermost frame first, as walk_stack gives one."""
    return reversed(list(traceback.walk_tb(error.__traceback__)))


def whereabouts(stack):
    """(place in the script, what it waits for) of a stack, innermost frame first.

    The place is "file:line in function" of the innermost frame outside libraries; what it waits
    for is a collective, the backward pass (where DistributedDataParallel's are), or one of WAITS;
    "" if it waits for nothing.
    """
    waiting = ""
    for frame, line in stack:
        code, module = frame.f_code, frame.f_globals.get("__name__", "")
        if code.co_name in PASSES:
            waiting = PASSES[code.co_name]
        elif module in COLLECTIVES:
            waiting = code.co_name
        elif module in WAITS:
            waiting = WAITS[module] or waiting  # the exchange asks the heartbeat, too
        elif not code.co_filename.startswith(LIBRARIES):
            folder, file = os.path.split(code.co_filename)
            return f"{os.path.basename(folder)}/{file}:{line} in {code.co_name}", waiting
    return "its start", waiting


def position(stack):
    """Where a stack is, as a line reports it: "in all_reduce (PLACE)", or "at PLACE"."""
    place, waiting = whereabouts(stack)
    return f"in {waiting} ({place})" if waiting else f"at {place}"
