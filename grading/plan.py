"""A run of a submission: what is started, what it may use, and how it ended."""

import signal
from dataclasses import dataclass, field
from pathlib import Path

STACK_SIGNAL = signal.SIGUSR2  # a worker that gets it writes its stacks


@dataclass(frozen=True)
class Limits:
    """What a run may use: seconds, idle seconds, bytes of memory per worker and of one file."""

    seconds: float = 120.0
    idle: float = 12.0  # with no worker using a core: they wait for each other, in vain
    grace: float = 8.0  # after one worker has failed, for the others to say what they saw
    memory: int = 3 * 2**30
    file: int = 256 * 2**20
    processes: int = 512  # and threads, of all its workers


@dataclass
class Run:
    """One run of a submission: a command (script, then arguments) for every worker.

    `folder` is the submission's own copy and becomes its own; `observed` takes what is told of it,
    out of its reach; `readable` are folders it needs, `hidden` folders it must not see.
    """

    folder: Path
    commands: list
    observed: Path
    readable: tuple = ()
    hidden: tuple = ()
    limits: Limits = field(default_factory=Limits)
    learning_rate: float | None = None
    pause: float = 0.0
    user: int | None = None


@dataclass
class Ended:
    """How a run ended: an exit code by rank (minus the signal's number), None for one that hung.

    `reason` is "" or why all were killed: "time", "idle", "memory", "grace" or "interrupted";
    `first` is the rank that failed first, or None; `stacks` are the workers' stacks at that moment.
    """

    codes: list
    reason: str = ""
    first: int | None = None
    stacks: list = field(default_factory=list)
    isolation: str = ""
    loopback: int = 0  # bytes that crossed the loopback interface meanwhile
