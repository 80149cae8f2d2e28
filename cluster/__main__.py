"""What starts workers: python -m cluster COMMAND."""

import sys

from common.commands import run_command

COMMANDS = {  # name -> (module, what it does)
    "launch": ("cluster.launch", "start N workers of a script on this machine"),
    "hello": ("cluster.hello:start", "check a cluster before training on it"),
    "hosts": ("cluster.hosts", "copy, install, run and fetch on several machines by ssh"),
    "netlab": ("cluster.netlab", "a cluster of N nodes on this machine"),
}
MOVED = {
    "demo": "python -m experiments demo",
    "sweep": "python -m experiments scaling",
    "bench": "python -m staff.timing.measurements",
}


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    return run_command("cluster", COMMANDS, MOVED, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
