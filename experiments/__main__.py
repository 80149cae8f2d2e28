"""What starts runs and reports on them: python -m experiments COMMAND."""

import sys

from common.commands import run_command

COMMANDS = {  # name -> (module, what it does)
    "demo": ("experiments.demo", "every task on this machine, side by side"),
    "further": ("experiments.further", "the further tasks, each beside task 1"),
    "deepspeed": (
        "experiments.engine",
        "pre-training with DeepSpeed's engine beside task 8's loop",
    ),
    "traffic": ("experiments.traffic", "task 4's bytes by batch size, dtype and method"),
    "pays": ("experiments.pays", "accuracy with and without task 8's pre-training"),
    "pipeline": ("experiments.pipeline", "task 7's bubbles by schedule and micro-batches"),
    "restarts": ("experiments.restarts", "what a killed worker and a checkpoint cost"),
    "scaling": ("experiments.scaling", "tasks x workers x link rates in the lab"),
}


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    return run_command("experiments", COMMANDS, {}, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
