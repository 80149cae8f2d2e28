"""A few steps of a run as a Chrome trace, which chrome://tracing and Perfetto show."""

import torch
from torch.profiler import ProfilerActivity, profile, schedule


def start_trace(args, folder, world):
    """A profiler of the --trace steps that follow the first one; None without --trace.

    Its `step` is due after every step. It leaves trace.rank<R>.json after the last one, or when
    it is stopped.
    """
    if args.trace < 1:
        return None
    path = folder / f"trace.rank{world.rank}.json"

    def write(profiler):
        part = path.with_name(path.name + ".part")
        profiler.export_chrome_trace(str(part))
        part.replace(path)

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
