"""Runs task 8 in its settings, goes on from what one has saved, and calls its functions."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cluster.ports import free_port
from common.tasks import Task
from grading.calls import neighbors
from grading.checks.ended_early import saw_an_epoch
from grading.checks.evidence import Evidence
from grading.checks.graded_task import GradedTask
from grading.checks.observation import Observation
from grading.checks.pretraining import counted
from grading.checks.reader import ending, read_rank, read_text
from grading.checks.replayed import comparable
from grading.commands import command_of, environment_of
from grading.hand_in.archive import copy
from grading.plan import Ended, Run
from grading.pretraining_inputs import (
    CUT,
    DECAY,
    LENGTH,
    PHASE_2_LENGTH,
    SETTINGS,
    WORKERS,
    PretrainingSetting,
)
from grading.sandbox.remote import in_process
from grading.sandbox.sandbox import run_workers
from grading.sandbox.temporary import inner_folder

FUNCTIONS = Path(__file__).parent / "sandbox" / "pretraining_functions.py"
REFERENCE = "grading.pretraining_reference"


def run_pretraining(runner, task: Task, settings: list[str], tolerances: dict) -> GradedTask:
    """Run the task in the settings, until one fails before its end; `runner` is a Runner."""
    usual = SETTINGS["plain"]
    graded = GradedTask(task, WORKERS, usual.batch * usual.accumulated, tolerances, {})
    graded.corpus = runner.session.pretraining()[1]
    for name in settings:
        setting = SETTINGS[name]
        if not setting.updates:
            graded.functions = call_functions(runner)
            continue
        with inner_folder(runner.session.folder) as top:
            one = SettingRuns(runner, graded, setting, top)
            graded.runs[name] = evidence = one.first()
            whole = not evidence.cut and bool(evidence.seen.steps)
            if whole and setting.dropout:
                graded.again = one.further()
        if evidence.cut and not saw_an_epoch(graded, evidence):
            break
    return graded


class SettingRuns:
    """The runs of one setting, in the folder `top`."""

    def __init__(self, runner, graded: GradedTask, setting: PretrainingSetting, top: Path):
        self.runner = runner
        self.graded = graded
        self.setting = setting
        self.top = top
        self.inputs, _ = runner.session.pretraining()

    def first(self) -> Evidence:
        """The setting's run beside what one process computes from what was read."""
        flags = self.setting.flags.split()
        seen = self.run("first", self.inputs / "model", self.setting.updates, LENGTH, flags)
        why = why_no_reference(seen)
        if why or self.setting.dropout:
            return Evidence(self.setting, seen, why=why or "the run has dropout")
        first = seen.ranks[0].steps
        steps = [
            [[one.arrays for one in counted(rank.steps[at], self.setting)] for rank in seen.ranks]
            for at in range(comparable(seen))
        ]
        replayed = partial(
            in_process,
            REFERENCE,
            "replay",
            self.inputs / "model",
            steps,
            self.setting.max_grad_norm,
            self.setting.learning_rate,
            [step.rate for step in first],
            DECAY,
        )

        def details(step: int) -> Any:
            """A step's parts of the gradient; for step -1, the reference with another decay."""
            decayed = ("weights", "others") if step < 0 else ("weights",)
            return replayed(decayed, None if step < 0 else step)

        return Evidence(self.setting, seen, replayed(), details=details)

    def further(self) -> dict[str, Observation]:
        """The same run resumed in the middle of an epoch, and phase 2 from where it ended."""
        model, output = self.inputs / "model", self.top / "first" / "output"
        flags = [*self.setting.flags.split(), "--resume", str(output / f"checkpoint-{CUT}")]
        resumed = self.run("again", model, self.setting.updates, LENGTH, flags)
        phase_2 = ["--phase", "2", *self.setting.flags.split()]
        return {
            "resumed": resumed,
            "phase 2": self.run("phase2", output, 3, PHASE_2_LENGTH, phase_2),
        }

    def run(self, name: str, model: Path, steps: int, length: int, flags: list[str]) -> Observation:
        """One run, in a folder of that name; what was seen of it."""
        runner, task, setting = self.runner, self.graded.task, self.setting
        own, top = runner.calls.entry(task).facts, self.top / name
        folder, observed, output = top / "submission", top / "observed", top / "output"
        top.mkdir()
        top.chmod(0o711)
        copy(runner.path, folder)
        output.mkdir()
        values = {
            "model": model,
            "data_dir": self.inputs / "corpus",
            "output_dir": output,
            "config": self.inputs / f"{setting.name}.json",
            "max_seq_length": length,
            "steps": steps,
            "batch": setting.batch,
            "accumulated": setting.accumulated,
            "max_grad_norm": setting.max_grad_norm,
            "dropout": setting.dropout,
            "master_ip": "127.0.0.1",
            "master_port": free_port(),
            "world_size": WORKERS,
        }
        each = [values | {"rank": rank} for rank in range(WORKERS)]
        earlier = [path for path in self.top.glob("*/output") if path != output]
        ended = run_workers(
            Run(
                folder,
                [[*command_of(own, task, of_rank, folder), *flags] for of_rank in each],
                observed,
                environment=tuple(environment_of(own, task, of_rank) for of_rank in each),
                writable=(output, *earlier),
                readable=(runner.session.inputs,),
                hidden=neighbors(runner.path),
                limits=replace(self.graded.limits, grace=2.0),
                learning_rate=setting.learning_rate,
            )
        )
        ranks = [read_rank(observed, rank) for rank in range(WORKERS)]
        runner.outputs[f"{task.name}/{setting.name}{'' if name == 'first' else f'-{name}'}"] = [
            {"out": ending(rank.out), "err": ending(rank.err)} for rank in ranks
        ]
        runner.isolation = f"{len(ranks)} workers; {ended.isolation}"
        return Observation(ranks, ended, folder)


def why_no_reference(seen: Observation) -> str:
    """Why a run cannot be compared with the reference; "" if it can."""
    if not seen.steps:
        return "no update by an optimizer of torch.optim was seen on every rank"
    if any(rank.broken for rank in seen.ranks):
        return "the probe's record of the run is damaged"
    forwards = [one for rank in seen.ranks for step in rank.steps for one in step.forwards]
    if not forwards or any(not one.arrays or one.losses is None for one in forwards):
        return "the model is not called with pairs and labels, or does not return two losses"
    return ""


def call_functions(runner) -> dict:
    """What pretraining_functions.py prints in the submission's folder; or its `error`."""
    with inner_folder(runner.session.folder) as top:
        folder, observed = top / "submission", top / "observed"
        copy(runner.path, folder)
        shutil.copy(FUNCTIONS, folder)
        ended: Ended = run_workers(Run(folder, [[FUNCTIONS.name]], observed))
        printed, errors = (read_text(observed / f"0.{end}") for end in ("out", "err"))
    try:
        found = json.loads(printed)
        return {name: list(found[name]) for name in ("lamb", "factors")}
    except (ValueError, KeyError, TypeError, RecursionError):
        lines = [line for line in errors.splitlines() if line.strip()]
        return {"error": lines[-1] if lines else f"exit code {ended.codes[0]}, and no output"}
