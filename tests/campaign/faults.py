"""Faults that a worker does to itself, in a task's script as it is, when it calls a function."""

import contextlib
import itertools
import os
import pkgutil
import random
import resource
import signal
import time
from pathlib import Path
from typing import NamedTuple

from common.tasks import TASKS
from tests.campaign import machines
from tests.workers import work

import psutil
import torch

SIZE = 3
TIMEOUT_SECONDS = 12
STEPS = 6  # of an epoch; there are two, with a checkpoint after every second step
TASK_NAMES = [name for name in ("task2a", "task2b", "task3") if name in TASKS]
MOMENTS = {  # moment: (where the name is looked up, the function, at which of its calls)
    "joining": ("common.workers.world", "join_roster", [1]),
    "meeting": ("common.workers.world", "open_group", [1]),
    "cache": ("common.data.features", "tokenize", [1]),
    "first step": ("common.data.loader", "collate", [1]),
    "mid epoch": ("common.data.loader", "collate", [2, 3, 4, 5, 6, 8, 9, 10, 11, 12]),
    "evaluation": ("common.models.evaluate", "predict", [1, 2]),
    "checkpoint": ("common.checkpoint", "flush", [1, 2, 3, 4, 5, 6]),
    "last save": ("common.record.record:Record", "finish", [1]),
    "leaving": ("common.workers.world", "leave", [1]),
}
IN_LAB = ("cut", "disk")  # faults that need the lab's namespaces
FILLER = "filler"  # a file in --output_dir


class Case(NamedTuple):
    """A fault of a rank of a task, at a call of a function; then perhaps a resumed run."""

    task: str
    rank: int
    moment: str
    call: int
    fault: str
    resume: bool

    def __str__(self) -> str:
        then = ", resumed" if self.resume else ""
        return f"{self.task}, rank {self.rank}, {self.moment} {self.call}: {self.fault}{then}"


def choose(random_numbers: random.Random, lab: bool) -> Case:
    """A random case."""
    pick = random_numbers.choice
    moment = pick(list(MOMENTS))
    faults = [name for name in FAULTS if lab or name not in IN_LAB]
    return Case(
        pick(TASK_NAMES),
        pick(range(SIZE)),
        moment,
        pick(MOMENTS[moment][2]),
        pick(faults),
        pick([True, False]),
    )


class Place(NamedTuple):
    """Where a worker runs: its node, if there is a lab, and the run's folder of outputs."""

    node: int
    output: Path
    lab: bool = False

    @property
    def mark(self) -> Path:
        """A link to the rank that the fault has come to."""
        return self.output.with_name("fault")


def be_worker(case: Case | None, rank: int, place: Place, argv: list[str], text: Path) -> None:
    """In a new process: be a worker of the task, which the fault may come to."""
    if place.lab:
        machines.enter(place.node)
    script = case.task if case else argv.pop(0)
    if case and (rank == case.rank or case.moment == "cache"):  # one rank writes it: any
        spoil(case, rank, place)
    work(script, argv, {}, text)


def spoil(case: Case, rank: int, place: Place) -> None:
    """Let the fault come at the case's moment."""
    where, name, _ = MOMENTS[case.moment]
    owner, calls = pkgutil.resolve_name(where), itertools.count(1)
    original = getattr(owner, name)

    def spoiled(*arguments, **options):
        if next(calls) == case.call:
            with contextlib.suppress(FileExistsError):  # another rank was first
                place.mark.symlink_to(str(rank))
                FAULTS[case.fault](place)
        return original(*arguments, **options)

    setattr(owner, name, spoiled)


def kill(_: Place) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop(_: Place) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def hang(_: Place) -> None:
    time.sleep(20 * TIMEOUT_SECONDS)


def fail(_: Place) -> None:
    raise ZeroDivisionError("of 0 examples")


def exhaust_memory(_: Place) -> None:
    """Ask for more memory than this process may have, as with `ulimit -v`."""
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, used + 2**20))
    torch.ones(2**28)


def fill_disk(place: Place) -> None:
    """Fill the disk that --output_dir is on; it is a small one."""
    place.output.mkdir(exist_ok=True)
    with contextlib.suppress(OSError), (place.output / FILLER).open("wb", 0) as file:
        for size in (2**20, 2**10):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


def cut_link(place: Place) -> None:
    machines.cut(place.node)


FAULTS = {
    "kill": kill,
    "stop": stop,
    "hang": hang,
    "exception": fail,
    "memory": exhaust_memory,
    "disk": fill_disk,
    "cut": cut_link,
}
