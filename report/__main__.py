"""What reads runs: python -m report COMMAND."""

import sys

from common.commands import run_command

COMMANDS = {  # name -> (module, what it does)
    "build": ("report.build", "build your report as a PDF"),
    "compare": ("report.compare", "compare runs: losses, metrics, times, traffic"),
    "figures": ("report.figures", "draw runs: losses, times, traffic, accuracy"),
    "traces": ("report.traces", "sum up the communication in --trace runs"),
    "waiting": ("report.waiting", "draw who computes and who waits, beside the best split"),
    "timeline": ("report.timeline", "draw the stages of a pipeline, and measure its bubble"),
    "weak": ("report.weak", "draw the speed-up at one batch per worker, beside HetSeq's"),
    "scaling": ("report.scaling", "fit a cost model to a sweep, and extrapolate"),
    "plan": ("report.plan", "which split of 1,024 GPUs serves a model, by formulas"),
    "published": ("report.published", "which links reproduce DeepSpeed's published times"),
}
MOVED = {
    "timings": "python -m staff timings",
    "bench": "python -m staff.timing.rounds",
}


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    return run_command("report", COMMANDS, MOVED, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
