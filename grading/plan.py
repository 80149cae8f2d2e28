"""A run of a submission: what is started, what it may use, and how it ended."""

import signal
from dataclasses import dataclass, field
from pathlib import Path

STACK_SIGNAL = signal.SIGUSR2  # makes a worker write its stacks


@dataclass(frozen=True)
class Limits:
    """What a run may use; times in seconds, sizes in bytes."""

    seconds: float = 120.0
    idle: float = 12.0  # with no worker using a core: they wait for each other
    grace: float = 8.0  # after one worker has failed, for the others to report what they saw
    memory: int = 3 * 2**30  # of each worker
    file: int = 256 * 2**20  # size of one file
    disk: int = 2 * 2**30  # of all files
    files: int = 100_000
    processes: int = 1024  # and threads, of all its workers


@dataclass
class Run:
    """One run of a submission: a command (script, then arguments) for every worker.

    `environment` has variables for every worker, by rank; {} for all if it is empty. `folder` is
    the submission's own copy; its user will own it, and the `writable` folders.
    `observed` receives the probes' records, where the submission cannot reach them. `readable` are
    folders that it needs; it sees none but these, and for the `hidden` ones that is verified.
    `learning_rate`, `pause` (seconds) and `steps` are for the probe.
    """

    folder: Path
    commands: list[list[str]]
    observed: Path
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    environment: tuple[dict[str, str], ...] = ()
    limits: Limits = field(default_factory=Limits)
    learning_rate: float | None = None
    pause: float = 0.0
    steps: int = 0
    user: int | None = None


@dataclass
class Ended:
    """How a run ended: an exit code by rank (minus the signal's number), None for one that hung.

    `reason` is "" or why all were killed: "time", "idle", "memory", "disk", "grace" or
    "interrupted"; `first` is the rank that failed first, or None; `stacks` are the workers' stacks
    at that moment.
    """

    codes: list[int | None]
    reason: str = ""
    first: int | None = None
    stacks: list[str] = field(default_factory=list)
    isolation: str = ""
    loopback: int = 0  # bytes that crossed the loopback interface meanwhile
