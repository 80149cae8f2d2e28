"""Runs a submission's tasks in every setting that their checks look at, beside the reference."""

import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from cluster.ports import free_port
from common.tasks import Task
from grading import inputs, stored
from grading.calls import Calls, neighbors
from grading.checks.ended_early import saw_an_epoch
from grading.checks.evidence import Evidence
from grading.checks.graded_task import GradedTask
from grading.checks.observation import Observation, Rank
from grading.checks.reader import ending, read_rank
from grading.checks.replayed import comparable, rows_read
from grading.checks.replicas import replicas
from grading.checks.saved_model import read_saved
from grading.checks.sharded import overlapping
from grading.checks.written import find_texts, read_texts
from grading.commands import command_of, environment_of, placeholders
from grading.hand_in.archive import copy
from grading.mapping import Mapping
from grading.plan import Run
from grading.pretraining_runs import run_pretraining
from grading.reference import has_reference
from grading.sandbox.sandbox import run_workers
from grading.sandbox.session import Session
from grading.sandbox.temporary import inner_folder

TOO_COSTLY = ("time", "memory", "disk")  # a run killed for these is not repeated in others
ASSERTS_TOTAL = re.compile(rf"\bassert\b.*\b{inputs.ASSIGNED_BATCH}\b")
TRACEBACK = 8000  # characters: where an error ends, and little enough for any pattern
OLD_OPTIMIZERS = ("transformers.", "pytorch_transformers.")


class Runner:
    """Runs the tasks of the submission in the folder `path`.

    `isolation` is how many workers the last run had, and how they were isolated; `sync_ratio` is
    task -> seconds of its synchronization over those of one flat all_reduce of the same bytes;
    `outputs` is what each rank printed, as in grading.results.Report.
    """

    def __init__(self, path: Path, mapping: Mapping, session: Session):
        self.path = path
        self.calls = Calls(path, mapping, session)
        self.session = session
        self.isolation = ""
        self.sync_ratio = {}
        self.outputs = {}

    def run_task(self, task: Task, settings: list[str], tolerances: dict) -> GradedTask:
        """Run a task in the settings, until one fails before it has shown an epoch."""
        if task.pretrains:
            return run_pretraining(self, task, settings, tolerances)
        total = int(self.calls.entry(task).facts.get("total_batch", inputs.TOTAL_BATCH))
        graded = self.run_with(total, task, settings, tolerances)
        if total == inputs.TOTAL_BATCH and asserts_its_total(graded):
            return self.run_with(inputs.ASSIGNED_BATCH, task, settings, tolerances)
        return graded

    def run_with(self, total: int, task: Task, settings: list[str], tolerances: dict) -> GradedTask:
        """The same with a total batch."""
        workers, parts = inputs.division(task, self.session.workers)
        known = self.session.known
        graded = GradedTask(task, workers, total // workers, tolerances, known, parts)
        given = self.calls.entry(task).facts.get("arguments", "max_seq_length")
        graded.length_given = "max_seq_length" in str(given)
        for name in settings:
            if name == "few":
                self.run_others(graded)
                continue
            evidence = self.run_setting(graded, inputs.setting_for(name, total))
            graded.runs[name] = evidence
            if evidence.seen.ended.reason in TOO_COSTLY:
                break
            if evidence.cut and not saw_an_epoch(graded, evidence):
                break
        self.time_synchronization(graded)
        return graded

    def run_others(self, graded: GradedTask) -> None:
        """A few updates with other numbers of workers."""
        usual, total = self.isolation, graded.batch * graded.workers
        for size in inputs.OTHER_WORKERS:
            batch, rest = divmod(total, size)
            if total == inputs.TOTAL_BATCH or graded.task.divided:
                batch, rest = graded.batch, 0
            if size == graded.processes or rest:  # a script that insists on its total
                continue
            readers, parts = (1, size) if graded.task.divided else (size, 1)
            known = graded.known
            one = GradedTask(graded.task, readers, batch, graded.tolerances, known, parts)
            one.limits = replace(one.limits, grace=1.0)
            graded.others[size] = self.run_setting(one, inputs.SETTINGS["few"])
            graded.batches[size] = batch
        self.isolation = usual

    def time_synchronization(self, graded: GradedTask):
        """Note the ratio of a task that synchronizes by hand, in its first run."""
        evidence = next(iter(graded.runs.values()))
        if graded.task.by_hand and evidence.seen.steps > 2:
            waited = median(step.waited for step in evidence.ranks[0].steps[1:])
            flat = self.session.flat_all_reduce(sum(evidence.ranks[0].sizes))
            self.sync_ratio[graded.task.name] = round(waited / flat, 3)

    def run_setting(self, graded: GradedTask, setting: inputs.Setting) -> Evidence:
        """Run one task in one setting."""
        with inner_folder(self.session.folder) as top:
            folder, observed, output = top / "submission", top / "observed", top / "output"
            copy(self.path, folder)
            output.mkdir()
            data = [top / "data" / str(rank) / "RTE" for rank in range(graded.processes)]
            for one in data:  # each worker's own, as on a machine of its own: scripts cache there
                shutil.copytree(self.session.inputs / setting.rows, one)
            before = find_texts(folder)
            task, own = graded.task, self.calls.entry(graded.task).facts
            values = self.values(graded, setting, output, data)
            ended = run_workers(
                Run(
                    folder,
                    [command_of(own, task, each, folder) for each in values],
                    observed,
                    environment=tuple(environment_of(own, task, each) for each in values),
                    writable=(output, top / "data"),
                    readable=(self.session.inputs,),
                    hidden=neighbors(self.path),
                    limits=graded.limits,
                    learning_rate=setting.learning_rate,
                    pause=0.0 if task.divided else setting.pause,  # stages wait in turn
                    steps=setting.steps,
                )
            )
            ranks = [read_rank(observed, rank) for rank in range(graded.processes)]
            if ended.reason:
                drop_unfinished(ranks)
            of_model = replicas(ranks, graded.divided_over) if task.divided else ranks
            seen = Observation(of_model, ended, folder, read_texts([folder, output], before))
            seen.weighted = graded.task.weighted
            seen.sharded = bool(graded.task.sharded)
            seen.saved = read_saved(output) if task.sharded or task.divided else {}
        name = f"{setting.name}-{graded.processes}" if setting.steps else setting.name
        self.outputs[f"{graded.task.name}/{name}"] = [
            {"out": ending(rank.out), "err": ending(rank.err)} for rank in ranks
        ]
        self.isolation = f"{len(ranks)} workers; {ended.isolation}"
        why = why_no_reference(seen)
        if why:
            return Evidence(setting, seen, why=why)
        return self.evidence(setting, seen, inputs.model_for(task))

    def values(
        self, graded: GradedTask, setting: inputs.Setting, output: Path, data: list[Path]
    ) -> list[dict[str, object]]:
        """The values for the placeholders of every worker; `data` has the folders of their data."""
        shared = placeholders(setting, self.session.inputs / inputs.model_for(graded.task), output)
        shared |= {
            "batch": graded.batch,
            "total_batch": graded.batch * graded.workers,
            "batch_sizes": ",".join(map(str, graded.parts)),
            "master_port": free_port(),
            "world_size": graded.processes,
            "replicas": graded.workers,
            "divided_over": graded.divided_over,
            "microbatches": inputs.MICROBATCHES,
        }
        return [shared | {"rank": rank, "data_dir": path} for rank, path in enumerate(data)]

    def evidence(self, setting: inputs.Setting, seen: Observation, model: str) -> Evidence:
        """A run beside what one process computes from the rows that were read."""
        steps, first = comparable(seen), seen.ranks[0].steps
        try:
            if not has_reference():
                found, details = stored.reference(setting.name, seen, model)
                return Evidence(setting, seen, found, details=details)
            rows = rows_read(seen, steps, self.session.known[setting.rows])
        except ValueError as error:
            return Evidence(setting, seen, why=str(error))
        replayed = partial(
            self.session.reference,
            model,
            rows,
            setting.max_grad_norm,
            setting.learning_rate,
            [step.rate for step in first[:steps]],
            first[0].optimizer.startswith(OLD_OPTIMIZERS),
            first[0].decay if first[0].decay <= inputs.DEFAULT_DECAY else 0.0,
        )
        return Evidence(setting, seen, replayed(), details=replayed)


def drop_unfinished(ranks: list[Rank]):
    """Forget a last update whose new weights the probe did not log before its worker was killed."""
    for rank in ranks:
        before = [rank.start, *(step.after for step in rank.steps)]
        if rank.steps and before[-1] is before[-2]:
            del rank.steps[-1]


def asserts_its_total(graded: GradedTask) -> bool:
    """Whether it stopped at an assertion of the assignment's total batch."""
    ranks = next(iter(graded.runs.values())).seen.ranks
    ends = [rank.err[-TRACEBACK:] for rank in ranks if not rank.steps]
    ends = [end.rpartition("\nAssertionError")[0] for end in ends]
    return any(ASSERTS_TOTAL.search(line) for end in ends for line in end.splitlines())


def why_no_reference(seen: Observation) -> str:
    """Why a run cannot be compared with the reference; "" if it can."""
    steps, ranks = comparable(seen), seen.ranks
    if not seen.steps:
        return "no update by an optimizer of torch.optim was seen on every rank"
    if not steps:
        return "the ranks read different numbers of rows from the first step on"
    if any(not rank.steps[step].rows for rank in ranks for step in range(steps)):
        return "the model is not called with input_ids, so its rows could not be seen"
    if any(rank.broken for rank in ranks):
        return "the probe's record of the run is damaged"
    if overlapping(seen):
        return "some weights are updated by several ranks, and others by one"
    return ""
