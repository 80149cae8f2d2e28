"""Reads the records of a whole class: folders and zips whose contents nobody can trust."""

import json
import math
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

from common.record.format import FORMAT, upgrade
from staff.timing.machines import identifier, names_of

import numpy

MOST_BYTES = {"run.json": 2**20, "steps": 2**26, "line": 2**16}
MOST_RANKS = 1024
RUN, SYNC = RECORDS = ("run.json", "sync_times.json")


class BrokenRecordError(Exception):
    """Why a run is skipped."""


BROKEN = (  # what reading broken records can raise
    BrokenRecordError,
    KeyError,
    TypeError,
    ValueError,
    OSError,
    zipfile.BadZipFile,
    EOFError,
    RuntimeError,  # RecursionError and NotImplementedError are of its kind
)
Read = Callable[[str], IO[bytes]]  # opens a file beside the run.json


@dataclass(frozen=True)
class Timed:
    """The times of a run; `seconds` and `sync` of each iteration but the first, rank means."""

    name: str
    task: str
    machine: str
    machine_id: str  # "" in records of earlier versions
    workers: int
    total_batch: int
    model: str
    length: int
    steps: int
    iterations_timed: int
    threads: int  # of all workers of the first machine
    cores: int  # of it, or as many as it has workers, who need a thread each
    round: int | None
    flat: float | None  # seconds of its bare all_reduce, where it was timed
    seconds: numpy.ndarray
    sync: numpy.ndarray


def load_all(
    paths: Iterable[Path | str],
) -> tuple[list[Timed], list[tuple[str, str]], dict[str, float]]:
    """(runs, skipped, flat all_reduce seconds by machine) of run folders, folders of them, zips.

    `skipped` has (name, reason) pairs. Names are relative to the folder that all are in.
    """
    runs, skipped, flat = [], [], {}
    given = [Path(path).resolve() for path in paths]
    places = [found for each in given for found in records_in(each)]
    base = Path(os.path.commonpath(given))
    if base in places:
        base = base.parent
    for path in places:
        shown = path.relative_to(base).as_posix()
        try:
            records = list((zipped if path.is_file() else folder)(path))
        except BROKEN as error:
            skipped.append((shown, why_unread(error)))
            continue
        for inner, read in records:
            name = f"{shown}:{inner}" if inner else shown
            try:
                if name.endswith(SYNC):
                    machine, number, seconds = flat_all_reduce(read(SYNC))
                    flat[machine, number] = seconds
                else:
                    runs.append(timed(name, read))
            except BROKEN as error:
                skipped.append((name, why_unread(error)))
    names = names_of([*((run.machine, run.machine_id) for run in runs), *flat])
    runs = [replace(run, machine=names[run.machine, run.machine_id]) for run in runs]
    return runs, skipped, {names[key]: seconds for key, seconds in flat.items()}


def why_unread(error: Exception) -> str:
    """Why records cannot be read, without the machine's own paths."""
    if isinstance(error, BrokenRecordError):
        return str(error)
    if isinstance(error, zipfile.BadZipFile):
        return "not the records of a run: a damaged zip file, or none"
    if isinstance(error, KeyError):
        return f"its records have no {error}"[:200]
    return f"not the records of a run: {error!r}"[:200]


def records_in(path: Path) -> list[Path]:
    """The folders that hold records, and the zips, in a folder and below; else the path itself."""
    if not path.is_dir():
        return [path]
    found = {file.parent for name in RECORDS for file in path.rglob(name)}
    found.update(file for file in path.rglob("*.zip") if file.is_file())
    return sorted(found) or [path]


def folder(path: Path) -> Iterator[tuple[str, Read]]:
    """("" or a file's name, function that opens a file there) of each record in a folder."""
    if not path.exists():
        raise BrokenRecordError("there is no such file or folder")
    found = [name for name in RECORDS if (path / name).is_file()]
    if not found:
        raise BrokenRecordError("it contains no run.json and no zip")
    for name in found:
        yield "" if name == RUN else name, lambda wanted: (path / wanted).open("rb")


def zipped(path: Path) -> Iterator[tuple[str, Read]]:
    """The same for a zip file, which is read where it is: nothing is extracted."""
    archive = zipfile.ZipFile(path)
    found = [name for name in archive.namelist() if PurePosixPath(name).name in RECORDS]
    if not found:
        raise BrokenRecordError("it contains no run.json")
    for name in sorted(found):
        inside = PurePosixPath(name).parent
        shown = str(inside if name.endswith(RUN) else name)
        yield (
            shown.removeprefix(f"{path.stem}/"),
            lambda wanted, inside=inside: archive.open(str(inside / wanted)),
        )


def load_json(file: IO[bytes]) -> dict:
    """A small JSON file's object."""
    with file:
        text = file.read(MOST_BYTES["run.json"] + 1)
    if len(text) > MOST_BYTES["run.json"]:
        raise BrokenRecordError("its run.json is larger than 1 MB")
    found = json.loads(text)
    if not isinstance(found, dict):
        raise BrokenRecordError("its run.json is not an object")
    return found


def flat_all_reduce(file: IO[bytes]) -> tuple[str, str, float]:
    """(machine, its id or "", median seconds of a flat all_reduce) of sync_times' records."""
    facts = load_json(file)
    seconds = float(numpy.median(facts["seconds"]["flat all_reduce"]))
    return str(facts["machine"])[:200], identifier(facts), seconds


def timed(name: str, read: Read) -> Timed:
    """The times of the run whose files `read` opens.

    Raises BrokenRecordError, KeyError, or one of BROKEN.
    """
    facts = load_json(read(RUN))
    if facts["format"] > FORMAT:
        raise BrokenRecordError(
            f"its records have format {facts['format']}; this reads up to {FORMAT}"
        )
    facts = upgrade(facts, facts["format"])
    if facts["end"] is None:
        raise BrokenRecordError("it did not finish")
    workers = int(facts["world_size"])
    if not 1 <= workers <= MOST_RANKS:
        raise BrokenRecordError(f"its world size is {workers}")
    ranks = [steps(read(f"steps.rank{rank}.jsonl"), rank) for rank in range(workers)]
    if len({len(rank) for rank in ranks}) > 1:
        raise BrokenRecordError("its ranks have different numbers of steps")
    if len(ranks[0]) < 2:
        raise BrokenRecordError("it has fewer than 2 steps")
    table = numpy.array(ranks)  # rank, step, column
    arguments = facts["arguments"]
    place = re.findall(r"round(\d+)", name)
    hosts = facts.get("hosts") or [facts["host"]]
    here = sum(host == facts["host"] for host in hosts)
    return Timed(
        name=name,
        task=str(facts["task"]).removeprefix("task")[:20],
        machine=f"{facts['host']} ({facts['processor']})"[:200],
        machine_id=identifier(facts),
        workers=workers,
        total_batch=int(table[:, 0, 2].sum()),
        model=PurePosixPath(str(arguments["model_name_or_path"])).name[:80],
        length=int(arguments["max_seq_length"]),
        steps=len(ranks[0]),
        iterations_timed=int(facts.get("iterations_timed", 0)),
        threads=int(facts["threads"]) * here,
        cores=max(int(facts["cores"]), here),
        round=int(place[-1]) if place else None,
        flat=positive(facts.get("all_reduce_seconds")),
        seconds=table[:, 1:, 0].mean(axis=0),
        sync=table[:, 1:, 1].mean(axis=0),
    )


def positive(value: Any) -> float | None:
    """A number of seconds above 0; None for anything else."""
    return float(value) if isinstance(value, (int, float)) and 0 < value < math.inf else None


def steps(file: IO[bytes], rank: int) -> list[tuple[float, float, int]]:
    """(total seconds, synchronization seconds, examples) of each step in a rank's file."""
    rows, size = [], 0
    with file:
        while line := file.readline(MOST_BYTES["line"] + 1):
            size += len(line)
            if len(line) > MOST_BYTES["line"] or size > MOST_BYTES["steps"]:
                raise BrokenRecordError(f"steps.rank{rank}.jsonl, line {len(rows) + 1}: too long")
            step = json.loads(line)
            row = (step["seconds"]["total"], step["seconds"]["sync"], step["examples"])
            if not all(isinstance(n, (int, float)) and 0 <= n < math.inf for n in row):
                raise BrokenRecordError(
                    f"steps.rank{rank}.jsonl, line {len(rows) + 1}: times {row}"[:200]
                )
            rows.append(row)
    return rows
