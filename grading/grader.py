"""Grades one submission: runs it, replays what it read, and makes every check of the rubric."""

import importlib
import importlib.util
import re
import shlex
import shutil
import tempfile
import time
import traceback
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from cluster.launch import free_port
from common.errors import UserError
from grading import material, rubric, tolerances
from grading.checks import CHECKS
from grading.diagnosis import Cause
from grading.evidence import Evidence, comparable, rows_read
from grading.handbook import SECTIONS
from grading.observation import Observation, read_rank
from grading.results import FAILED, NOT_RUN, PASSED, UNKNOWN, Report, Result
from grading.sandbox import FORKS, Limits, Run, run

import yaml

COMMAND = """--model_type {model_type} --model_name_or_path {model} --task_name {task_name}
    --do_train --do_eval --data_dir {data_dir} --max_seq_length {max_seq_length}
    --per_gpu_train_batch_size {batch} --per_gpu_eval_batch_size {eval_batch}
    --learning_rate {learning_rate} --num_train_epochs {epochs} --max_grad_norm {max_grad_norm}
    --output_dir {output_dir} --overwrite_output_dir"""
DISTRIBUTED = """ --master_ip {master_ip} --master_port {master_port} --world_size {world_size}
    --local_rank {rank}"""
FLAT = Path(__file__).with_name("flat_all_reduce.py")
SYNCHRONISED = ("task2a", "task2b")  # by hand, between the backward pass and the update
STRATEGIES = {"task4": "task2b"}
RATE = 2e-5
PLUMBING = re.compile(r"(steps|trace)\.rank\d+\.jsonl?|run\.json")
TEXTS = (".txt", ".json", ".jsonl", ".csv", ".log", ".md", ".out")
SYSTEM = ("", "usr", "etc", "opt", "var", "lib", "bin", "home", "root")
LEFT = 2**20  # characters of what a run leaves that are read
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
        return self.counts[material.SETTINGS[setting].rows][split == "dev"]

    def answers(self, setting):
        """Token ids -> label, of a setting's rows."""
        return self.labels[material.SETTINGS[setting].rows]


class Session:
    """What all submissions share: the number of workers, and a folder with model and data."""

    def __init__(self):
        self.workers = material.worker_count()
        self.folder = Path(tempfile.mkdtemp(prefix="grading-"))
        self.folder.chmod(0o711)
        self.shown = self.folder / "material"
        self.shown.mkdir()
        self.labels = in_process("grading.material", "build", self.shown)
        self.flat = {}  # elements -> seconds

    def flat_all_reduce(self, elements):
        """The median seconds of one all_reduce of that many float32, between as many workers."""
        if elements not in self.flat:
            with tempfile.TemporaryDirectory(dir=self.folder) as top:
                folder, port = Path(top) / "timed", free_port()
                Path(top).chmod(0o711)
                folder.mkdir()
                shutil.copy(FLAT, folder)
                ranks = range(self.workers)
                place = (str(port), str(self.workers), str(elements))
                commands = [[FLAT.name, str(rank), *place] for rank in ranks]
                ended = run(Run(folder, commands, Path(top) / "observed"))
                told = (Path(top) / "observed" / "0.out").read_text()
            if any(ended.codes):
                raise RuntimeError(f"the timing of all_reduce ended with {ended.codes}")
            self.flat[elements] = float(told)
        return self.flat[elements]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)


def grade(path, tasks=None, mapping=None, on_result=None, settings=None, session=None):
    """The Report of the submission in the folder `path`.

    `tasks` and `settings` (names) are all, if not given; `mapping` is a file like a submission's
    own grading.yaml, which it replaces. `on_result(result, report)` is called after every check.
    Raises UserError for a folder or mapping that cannot be used.
    """
    start, path = time.monotonic(), Path(path)
    checks = rubric.load(tasks=tasks)
    if not path.is_dir():
        raise UserError(
            f"{path}: there is no such folder; unpack an archive first, or grade it "
            "with `python -m grading grade` in a folder of submissions"
        )
    commands = commands_of(path, mapping)
    report = Report(path.name)
    with ExitStack() as stack:
        session = session or stack.enter_context(Session())
        grading = Submission(path, commands, session, settings)
        for check in checks:
            result = grading.check(check)
            report.results.append(result)
            report.isolation = grading.isolation
            report.sync_ratio, report.measured = grading.sync_ratio, grading.measured
            report.seconds = time.monotonic() - start
            if on_result:
                on_result(result, report)
    return report


class Submission:
    """A submission being graded: its tasks' runs are made when the first check asks for them."""

    def __init__(self, path, commands, session, settings=None):
        self.path, self.commands, self.session = path, commands, session
        self.settings, self.tasks, self.status = settings or list(material.SETTINGS), {}, {}
        self.isolation, self.sync_ratio, self.measured = "", {}, {}
        self.allow = tolerances.load()

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
        batch = material.TOTAL_BATCH // workers
        task = Task(
            *(name, workers, batch, Limits(), self.allow), material.ROWS, self.session.labels
        )
        settings = ["plain"] if name == "task4" else self.settings
        for setting in settings:
            evidence = self.run_setting(task, material.SETTINGS[setting])
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
            port = free_port()
            what = Run(
                folder,
                [self.command(task, setting, folder, rank, port) for rank in range(task.workers)],
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

    def command(self, task, setting, folder, rank, port):
        """A worker's script and arguments; UserError where there is no such script."""
        own = self.commands.get(task.name, {})
        script = str(own.get("script", f"{task.name}/run_glue.py"))
        if (
            not (folder / script).resolve().is_relative_to(folder.resolve())
            or not (folder / script).is_file()
        ):
            raise UserError(
                f"{script}: there is no such file in the submission; put it there, or say where "
                "it is in grading.yaml"
            )
        text = own.get("arguments", COMMAND + DISTRIBUTED * (task.workers > 1))
        values = {
            "model": self.session.shown / "model",
            "model_type": "bert",
            "task_name": "RTE",
            "data_dir": self.session.shown / setting.rows,
            "output_dir": folder / "output",
            "max_seq_length": material.LENGTH,
            "batch": task.batch,
            "eval_batch": material.EVAL_BATCH,
            "learning_rate": RATE,
            "epochs": setting.epochs,
            "max_grad_norm": setting.max_grad_norm,
            "master_ip": "127.0.0.1",
            "master_port": port,
            "world_size": task.workers,
            "rank": rank,
        }
        try:
            return [script, *(word.format(**values) for word in shlex.split(str(text)))]
        except (KeyError, IndexError, ValueError) as error:
            raise UserError(
                f"grading.yaml: {task.name}: arguments: {error}; the placeholders are "
                f"{', '.join(f'{{{name}}}' for name in values)}"
            ) from None

    def reference(self, setting, seen):
        """(the reference of what was read, ""), or (None, why there is none)."""
        if importlib.util.find_spec("grading.oracle") is None:
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
        return in_process("grading.oracle", "replay", self.session.shown / "model", rows, *rest), ""


def status_text(status):
    """A status as the end of a sentence."""
    return {FAILED: "failed", NOT_RUN: "was not run"}.get(status, status)


def neighbours(path):
    """The folder that holds the other submissions, unless it is one of the system's."""
    parent = path.resolve().parent
    return () if len(parent.parts) <= 2 and parent.name in SYSTEM else (parent,)


def commands_of(path, mapping=None):
    """Task -> its script and arguments, where a submission's are not the handout's.

    They are those of the file `mapping`, or else of the submission's own grading.yaml, if it has
    one. Raises UserError for a file that is not there, or is no mapping.
    """
    file = Path(mapping) if mapping else path / "grading.yaml"
    if mapping and not file.is_file():
        raise UserError(f"--mapping {mapping}: there is no such file")
    if not file.is_file() or file.is_symlink():
        return {}
    try:
        mapping = yaml.safe_load(file.read_text()[:65536]) or {}
        if not all(isinstance(one, dict) for one in mapping.values()):
            raise ValueError("each task needs `script:` and `arguments:`")
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise UserError(f"{file.name}: is no mapping of tasks to commands ({error})") from None
    return mapping


def read_left(folder):
    """The text of the files that a run left, one after the other; links are not followed.

    What the handout's own plumbing records, whatever a student writes, is not told by the student.
    """
    texts, room = [], LEFT
    for path in sorted(folder.glob("*")) if folder.is_dir() and not folder.is_symlink() else ():
        if PLUMBING.fullmatch(path.name):
            continue
        if path.suffix in TEXTS and path.is_file() and not path.is_symlink() and room > 0:
            with path.open(errors="replace") as file:
                texts.append(file.read(room))
            room -= len(texts[-1])
    return "\n".join(texts)


def in_process(module, function, *arguments):
    """What a module's function returns in a process where torch is loaded; here it is not."""
    ours, theirs = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=answer, args=(theirs, module, function, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        value, error = ours.recv()
    except EOFError:
        value, error = None, f"it ended without a word (exit code {process.exitcode})"
    process.join()
    if error:
        raise RuntimeError(f"{module}.{function}: {error}")
    return value


def answer(talk, module, function, *arguments):
    """Send what the function returns, or what it raises."""
    try:
        talk.send((getattr(importlib.import_module(module), function)(*arguments), ""))
    except Exception as error:
        with suppress(OSError):
            talk.send((None, f"{type(error).__name__}: {error}"))
