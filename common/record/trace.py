"""A few steps of a run as a Chrome trace, which chrome://tracing and Perfetto show."""

from common.files import whole

import torch
from torch.profiler import ProfilerActivity, profile, schedule


def start_trace(args, folder, world):
    """A profiler of the --trace steps that follow the first one; None without --trace.

    Call its `step` after every step. It writes trace.rank<R>.json after the last one, or when it
    is stopped.
    """
    if args.trace < 1:
        return None
    path = folder / f"trace.rank{world.rank}.json"

    def write(profiler):
        with whole(path) as part:
            profiler.export_chrome_trace(str(part))

    activities = [ProfilerActivity.CPU]
    if world.device.type == "cuda" and torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    profiler = profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=1, active=args.trace, repeat=1),
        on_trace_ready=write,
    )
    profiler.start()
    return profiler
