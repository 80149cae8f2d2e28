"""Reads what runs write: run.json, the steps and the memory of every rank, the traffic."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from common.record.format import FORMAT, upgrade
from report.schema import COUNTS, FACTS, MEMORY, TRAFFIC, check, check_steps, expect


@dataclass(frozen=True)
class Run:
    """A run's records: `facts` is run.json, `steps` a list of step lines for each rank."""

    folder: Path
    facts: dict
    steps: list[list[dict]]
    traffic: dict  # empty where none was recorded
    memory: list[dict]  # of each rank; empty where none was recorded

    @property
    def name(self) -> str:
        """The task, such as 2a; with the method for task 4."""
        task = self.facts["task"].removeprefix("task")
        return f"{task}: {self.traffic['method']}" if self.traffic else task

    @property
    def losses(self) -> list[float]:
        """The global loss of each step: the ranks' losses weighted by their examples."""
        return [
            sum(rank["loss"] * rank["examples"] for rank in step)
            / sum(rank["examples"] for rank in step)
            for step in zip(*self.steps, strict=True)
        ]

    @property
    def full_steps(self) -> int:
        """How many steps of the first epoch have full batches: its last may hold fewer rows."""
        first = [sum(r["examples"] for r in step) for step in zip(*self.steps, strict=True)]
        epoch = [n for n, line in zip(first, self.steps[0], strict=True) if line["epoch"] == 1]
        return sum(examples == epoch[0] for examples in epoch)  # 0 where none is of epoch 1

    def seconds(self, phase: str) -> float:
        """Mean seconds per iteration in a phase, over the ranks, without the first iteration."""
        times = [line["seconds"][phase] for rank in self.steps for line in rank[1:]]
        return sum(times) / len(times) if times else float("nan")


def load_run(folder: Path | str) -> Run:
    """The run in a folder; raises UserError for one that is missing, unfinished, or newer."""
    folder = Path(folder)
    try:
        facts = json.loads(text_of(folder / "run.json"))
        if facts["format"] > FORMAT:
            raise UserError(
                f"{folder}: its records have format {facts['format']}, but this version reads up "
                f"to {FORMAT}; use the version of the kit that wrote them, or a newer one"
            )
        version = facts["format"]
        facts = upgrade(facts, version)
        if facts["end"] is None:
            raise UserError(f"{folder}: this run did not finish; run it again")
        check(facts, FACTS, "run.json")
        expect(facts["world_size"] > 0, facts["world_size"], "1 or more", "world_size")
        files = (folder / f"steps.rank{rank}.jsonl" for rank in range(facts["world_size"]))
        steps = [[json.loads(line) for line in text_of(file).splitlines()] for file in files]
        check_steps(steps)
        file = folder / "traffic.rank0.json"
        traffic = upgrade(json.loads(text_of(file)), version) if file.exists() else {}
        if traffic != {}:
            check(traffic, TRAFFIC, file.name)
            if traffic["per_iteration"]:
                check(traffic["per_iteration"], COUNTS, file.name)
        memory = load_memory(folder, facts["world_size"])
    except FileNotFoundError as error:
        raise UserError(
            f"{folder} contains no {Path(error.filename).name}, so it is not a run folder"
        ) from None
    except NotADirectoryError:
        raise UserError(f"{folder} is a file; give the folder of a run") from None
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        raise UserError(
            f"{folder}: its records cannot be read ({reason(error)}); run it again"
        ) from None
    return Run(folder, facts, steps, traffic, memory)


def load_memory(folder: Path, workers: int) -> list[dict]:
    """The bytes that each rank held, by rank; [] unless all have recorded them."""
    files = [folder / f"memory.rank{rank}.json" for rank in range(workers)]
    if not all(file.exists() for file in files):
        return []
    memory = [json.loads(text_of(file)) for file in files]
    for file, held in zip(files, memory, strict=True):
        check(held, MEMORY, file.name)
    return memory


def largest_gap(some: Sequence[float], others: Sequence[float]) -> float:
    """The largest difference between the losses of two runs, step by step."""
    return max(abs(one - other) for one, other in zip(some, others, strict=True))


def reason(error: Exception) -> str:
    """What an error says, in words that name the missing name or the kind of a terse one."""
    return str(error) if type(error) is ValueError else repr(error)


def load_runs(folders: Iterable[Path]) -> list[Run]:
    """The runs in these folders, each a run's own or one with runs in it, at any depth."""
    found = []
    for folder in folders:
        inner = sorted(file.parent for file in folder.rglob("run.json"))
        found += [folder] if (folder / "run.json").exists() or not inner else inner
    return [load_run(folder) for folder in found]


def text_of(path: Path) -> str:
    """The text of a file; a FIFO or a device, from which reading may never end, is none."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path.name} is not a file")
    return path.read_text()
