"""Grades one submission: runs it, replays what it read, and makes every check of the rubric."""

import importlib.util
import shutil
import tempfile
import time
import traceback
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from cluster.ports import free_port
from common.errors import UserError
from grading import inputs, rubric
from grading.checks import CHECKS
from grading.checks.evidence import Evidence, comparable, rows_read
from grading.checks.observation import Observation
from grading.checks.reader import read_left, read_rank
from grading.commands import RATE, command_of, commands_of
from grading.plan import Limits, Run
from grading.results import FAILED, NOT_RUN, PASSED, UNKNOWN, Cause, Report, Result
from grading.rubric import SECTIONS
from grading.sandbox.remote import in_process
from grading.sandbox.sandbox import run
from grading.sandbox.session import Session

SYNCHRONISED = ("task2a", "task2b")  # by hand, between the backward pass and the update
STRATEGIES = {"task4": "task2b"}
SYSTEM = ("", "usr", "etc", "opt", "var", "lib", "bin", "home", "root")
IGNORED = shutil.ignore_patterns(".git", ".venv", "__pycache__", "runs", "*.safetensors", "*.bin")


@dataclass
class Task:
    """One task of a submission, as its checks see it: its runs by setting, and what they ask."""

    name: str
    workers: int
    batch: int
    limits: Limits
    allow: dict
    counts: dict
    labels: dict
    runs: dict = field(default_factory=dict)
    measured: dict = field(default_factory=dict)  # check -> how far off it was, for calibration
    learning_rate: float = RATE

    @property
    def strategy(self):
        """The task whose way of synchronising this one is to use."""
        return STRATEGIES.get(self.name, self.name)

    def allowed(self, measure):
        return self.allow[measure]

    def rows(self, setting, split="train"):
        """How many rows a setting's training or dev set has."""
        return self.counts[inputs.SETTINGS[setting].rows][split == "dev"]

    def answers(self, setting):
        """Token ids -> label, of a setting's rows."""
        return self.labels[inputs.SETTINGS[setting].rows]


def grade(path, tasks=None, mapping=None, on_result=None, session=None):
    """The Report of the submission in the folder `path`.

    `tasks` are all, if not given; `mapping` is a file like a submission's
    own grading.yaml, which it replaces. `on_result(result, report)` is called after every check.
    Raises UserError for a folder or mapping that cannot be used.
    """
    start, path = time.monotonic(), Path(path)
    checks = rubric.load(tasks=tasks)
    if not path.is_dir():
        raise UserError(
            f"{path}: there is no such folder; unpack an archive first, or grade it "
            "with `python -m staff grade` in a folder of submissions"
        )
    commands = commands_of(path, mapping)
    report = Report(path.name)
    with ExitStack() as stack:
        session = session or stack.enter_context(Session())
        grading = Submission(path, commands, session)
        for check in checks:
            result = grading.check(check)
            report.results.append(result)
            report.isolation = grading.worker.isolation
            report.sync_ratio, report.measured = grading.sync_ratio, grading.measured
            report.seconds = time.monotonic() - start
            if on_result:
                on_result(result, report)
    return report


class Submission:
    """A submission being graded: its tasks' runs are made when the first check asks for them."""

    def __init__(self, path, commands, session):
        self.path, self.commands, self.session = path, commands, session
        self.tasks, self.status = {}, {}
        self.isolation, self.sync_ratio, self.measured = "", {}, {}
        self.allow = rubric.load_tolerances()

    def check(self, check):
        """The Result of one check of the rubric."""
        for need in check.needs:
            status = self.status.get(f"{check.task}/{need}", PASSED)
            if status != PASSED:
                why = f"not run because {check.task}/{need} {status_text(status)}"
                return self.result(check, NOT_RUN, cause=Cause("", why))
        try:
            task = self.tasks.get(check.task) or self.run_task(check.task)
            status, expected, got, where, cause, tolerance = CHECKS[check.name](task)
        except UserError as error:
            cause = Cause("missing", str(error))
            return self.result(check, FAILED, "a script to run", "none", "", cause)
        except Exception as error:  # what a submission leaves may be anything: no pass, no crash
            line = traceback.extract_tb(error.__traceback__)[-1]
            why = f"the grader could not: {type(error).__name__}: {error} ({line.name})"
            return self.result(check, UNKNOWN, cause=Cause("", why))
        if check.name in task.measured:
            self.measured[check.id] = task.measured[check.name]
        return self.result(check, status, expected, got, where, cause, tolerance)

    def result(self, check, status, expected="", got="", where="", cause=None, tolerance=""):
        self.status[check.id] = status
        cause = cause or Cause("", "")
        points = check.points if status == PASSED else 0.0
        see = SECTIONS.get(cause.name, SECTIONS[check.task]) if status == FAILED else ""
        words = (expected, got, where, cause.name, cause.sentence, see, tolerance)
        return Result(check.id, check.title, status, points, check.points, *words)

    def run_task(self, name):
        """Run a task in every setting, until one fails; returns the Task."""
        workers = 1 if name == "task1" else self.session.workers
        batch = inputs.TOTAL_BATCH // workers
        task = Task(*(name, workers, batch, Limits(), self.allow), inputs.ROWS, self.session.labels)
        settings = ["plain"] if name == "task4" else list(inputs.SETTINGS)
        for setting in settings:
            evidence = self.run_setting(task, inputs.SETTINGS[setting])
            task.runs[setting] = evidence
            if evidence.seen.ended.reason or any(evidence.seen.ended.codes):
                break
        self.tasks[name] = task
        if name in SYNCHRONISED and task.runs[settings[0]].seen.steps > 2:
            evidence = task.runs[settings[0]]
            waited = median(step.waited for step in evidence.ranks[0].steps[1:])
            flat = self.session.flat_all_reduce(sum(evidence.ranks[0].sizes))
            self.sync_ratio[name] = round(waited / flat, 3)
        return task

    def run_setting(self, task, setting):
        """Run one task in one setting; returns the Evidence."""
        with tempfile.TemporaryDirectory(dir=self.session.folder, prefix="run-") as top:
            folder, observed = Path(top) / "submission", Path(top) / "observed"
            Path(top).chmod(0o711)
            shutil.copytree(self.path, folder, ignore=IGNORED, symlinks=True)
            own, port = self.commands.get(task.name, {}), free_port()
            what = Run(
                folder,
                [
                    command_of(own, task, setting, self.session.shown, folder, rank, port)
                    for rank in range(task.workers)
                ],
                observed,
                readable=(self.session.shown,),
                hidden=neighbours(self.path),
                limits=task.limits,
                learning_rate=setting.learning_rate,
                pause=setting.pause,
            )
            ended = run(what)
            ranks = [read_rank(observed, rank) for rank in range(task.workers)]
            seen = Observation(ranks, ended, folder, read_left(folder / "output"))
        self.isolation = f"{len(ranks)} workers; {ended.isolation}"
        return Evidence(setting, seen, *self.reference(setting, seen))

    def reference(self, setting, seen):
        """(the reference of what was read, ""), or (None, why there is none)."""
        if importlib.util.find_spec("staff.reference") is None:
            return None, "the reference is not part of the students' handout; graders have it"
        steps, ranks = comparable(seen), seen.ranks
        if not seen.steps:
            return None, "no update by an optimizer of torch.optim was seen on every rank"
        if not steps:
            return None, "the ranks read different numbers of rows from the first step on"
        if any(not rank.steps[step].rows for rank in ranks for step in range(steps)):
            return None, "the model is not called with input_ids, so its rows could not be seen"
        if any(rank.broken for rank in ranks):
            return None, "the record of what it did is broken"
        try:
            rows = rows_read(seen, steps, self.session.labels[setting.rows])
        except ValueError as error:
            return None, str(error)
        rates = [one.rate for one in ranks[0].steps[:steps]]
        old = ranks[0].steps[0].optimizer.startswith(("transformers.", "pytorch_transformers."))
        rest = (setting.max_grad_norm, setting.learning_rate, rates, old)
        return in_process(
            "staff.reference", "replay", self.session.shown / "model", rows, *rest
        ), ""


def status_text(status):
    """A status as the end of a sentence."""
    return {FAILED: "failed", NOT_RUN: "was not run"}.get(status, status)


def neighbours(path):
    """The folder that holds the other submissions, unless it is one of the system's."""
    parent = path.resolve().parent
    return () if len(parent.parts) <= 2 and parent.name in SYSTEM else (parent,)
