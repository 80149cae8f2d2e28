"""The sections of a student's report: a table of losses or times, figures, and what is missing."""

from dataclasses import dataclass, field
from pathlib import Path

from common.record.format import difference
from common.tasks import ASSIGNED, COMPARED, SCRIPTS, TASKS, Task
from report import figures, traces
from report.compare import unlike
from report.headings import SCALABILITY, SECTIONS, title_of
from report.markdown import typst, without_comments
from report.pictures import Pictures
from report.runs import Run
from report.style import save
from report.times import ITERATIONS, spread, timed

EPOCHS = 3
ALONE = (
    "python task1/run_glue.py --do_train --do_eval --num_train_epochs 3 --output_dir runs/task1 ..."
)
COMMAND = "python -m cluster.launch --workers 4 {task.script} --output_dir runs/{task.name} ..."
LOSSES = "Loss of every step, and how far each run is from the first (not drawn where equal)"
SWEEP = "python -m experiments traffic --output_dir runs/sweep"


@dataclass
class Section:
    """A part of the report: `tables` and `figures` with captions, and what it lacks."""

    title: str
    missing: list[dict[str, str]] = field(default_factory=list)
    tables: list[dict] = field(default_factory=list)
    figures: list[dict[str, str]] = field(default_factory=list)
    answer: str = ""

    def lacks(self, what: str, fix: str) -> None:
        """Note that something is missing, and the command that makes it."""
        self.missing.append({"what": what, "fix": fix})

    def table(self, caption: str, rows: list) -> None:
        """Add a table; its first row are the heads."""
        self.tables.append({"caption": caption, "rows": [list(map(str, row)) for row in rows]})


def fill(runs: list[Run], answers: dict[str, str], source: Path, folder: Path) -> list[Section]:
    """The report's sections; figures, and pictures from the `source` of answers, are in `folder`.

    Further tasks that were run, and headings of the student's own, follow those of SECTIONS.
    """
    found = pick(runs)
    profiled = [run for run in runs if run.traffic and run.traffic["per_iteration"]]
    further = [task for task in SCRIPTS.values() if task.further and task.name in found]
    titles = (*SECTIONS, *map(title_of, further), *answers)
    made = {title: Section(title) for title in titles}
    by_task = {task.name: made[title_of(task)] for task in ASSIGNED}
    for task in ASSIGNED:
        section = by_task[task.name]
        if not task.distributed:
            plain(section, task, found)
        elif task.profiles:
            traffic(section, task, profiled)
        else:
            distributed(section, task, found)
    for task in further:
        distributed(made[title_of(task)], task, found)
    held(made, [found[task.name] for task in further], folder)
    traced(by_task[COMPARED[-1].name], found)
    mean_times(made[SCALABILITY], found)
    draw(by_task, found, profiled, folder)
    pictures = Pictures(source, folder)
    for section in made.values():
        reason(section, answers.get(section.title, ""), pictures)
    return list(made.values())


def reason(section: Section, text: str, pictures: Pictures) -> None:
    """Add the student's text to a section, and what of it cannot be shown."""
    reasoning = without_comments(text)
    section.answer = typst(reasoning, pictures)
    if not reasoning:
        section.lacks("your reasoning", f'write it in answers.md below "## {section.title}"')
    for what, fix in pictures.problems:
        section.lacks(what, fix)
    pictures.problems.clear()


def pick(runs: list[Run]) -> dict[str, Run]:
    """Task's name -> its run: of several the one with the most steps."""
    found = {}
    for run in runs:
        name = run.facts["task"]
        if name not in found or len(run.steps[0]) > len(found[name].steps[0]):
            found[name] = run
    return found


def plain(section: Section, task: Task, found: dict[str, Run]) -> None:
    """Losses of the first five minibatches and the metric after every epoch."""
    run = found.get(task.name)
    if not run:
        section.lacks(f"task {task.key} was not run", ALONE)
        return
    losses = [(f"minibatch {i + 1}", f"{loss:.6f}") for i, loss in enumerate(run.losses[:5])]
    section.table("Loss of the first five minibatches", [("", "loss"), *losses])
    metrics = run.facts["metrics"]
    epochs = sum(m["epoch"] == int(m["epoch"]) for m in metrics)
    if epochs < EPOCHS:
        section.lacks(f"the metric after {EPOCHS} epochs (there are {epochs})", ALONE)
    if metrics:
        names = [name for name in metrics[0] if name != "epoch"]
        rows = [(m["epoch"], *(f"{m[name]:.4f}" for name in names)) for m in metrics]
        section.table("Dev set after every epoch", [("epoch", *names), *rows])


def distributed(section: Section, task: Task, found: dict[str, Run]) -> None:
    """Losses and the mean time per iteration of a task that synchronizes gradients."""
    run, command = found.get(task.name), COMMAND.format(task=task)
    if not run:
        section.lacks(f"task {task.key} was not run", command)
        return
    steps = len(run.steps[0])
    if steps < ITERATIONS:
        what = f"{ITERATIONS} iterations to time (there are {steps})"
        section.lacks(what, f"{command} --max_steps {ITERATIONS}")
    compare_batches(section, run, found.get(COMPARED[0].name), command)
    ranks = [f"rank {rank}" for rank in range(len(run.steps))]
    rows = [
        (f"minibatch {i + 1}", *(f"{rank[i]['loss']:.6f}" for rank in run.steps), f"{loss:.6f}")
        for i, loss in enumerate(run.losses[:5])
    ]
    section.table("Loss of the first five minibatches", [("", *ranks, "all"), *rows])
    if means := timed(run):
        section.table(
            f"Milliseconds per iteration: mean of {min(steps, ITERATIONS) - 1} iterations and "
            f"{len(run.steps)} workers, the first iteration discarded",
            [list(means), [f"{mean:.1f}" for mean in means.values()]],
        )


def held(sections: dict[str, Section], runs: list[Run], folder: Path) -> None:
    """What workers of further tasks kept in memory: tables, and a figure of all in the last one."""
    measured = [run for run in runs if run.memory]
    for run in measured:
        heads = list(run.memory[0])
        rows = [
            [rank, *(f"{one[name] / 1e6:.1f}" for name in heads)]
            for rank, one in enumerate(run.memory)
        ]
        names = [name.replace("_", " ") for name in heads]
        title = title_of(SCRIPTS[run.facts["task"]])
        sections[title].table("MB that each worker held", [["rank", *names], *rows])
    figure = figures.FIGURES["memory"](measured)
    for path in save(figure, "memory", figures.source_of(measured) if measured else "", folder):
        if path.suffix == ".svg":
            title = title_of(SCRIPTS[measured[-1].facts["task"]])
            caption = "Bytes on one worker, and the formula of each strategy"
            sections[title].figures.append({"file": path.name, "caption": caption})


def compare_batches(section: Section, run: Run, one: Run | None, command: str) -> None:
    """Note where a run's total batch is not that of the run of one worker."""
    if one and figures.total_batch(one) != figures.total_batch(run):
        wanted = figures.total_batch(one)
        section.lacks(
            f"the total batch is {figures.total_batch(run)}, and task {one.name}'s {wanted}: "
            "their losses cannot be compared",
            f"{command} --per_gpu_train_batch_size {max(1, wanted // run.facts['world_size'])}",
        )


def traffic(section: Section, task: Task, profiled: list[Run]) -> None:
    """Traffic expected and measured, of every run that recorded it."""
    if not profiled:
        section.lacks(f"task {task.key} was not run", f"{SWEEP} ...")
        return
    heads = ("method", "gradients", "total batch", "payload", "expected", "measured", "difference")
    rows = []
    for run in profiled:
        mean, off = run.traffic["per_iteration"], difference(run.traffic["per_iteration"])
        sizes = (f"{mean[key] / 1e6:.3f}" for key in ("payload", "expected", "measured"))
        kind = (run.traffic["method"], run.traffic["dtype"], figures.total_batch(run))
        rows.append((*kind, *sizes, "-" if off is None else f"{off:+.2f} %"))
    section.table("Traffic per iteration, MB", [heads, *rows])
    if len({figures.total_batch(run) for run in profiled}) < 2:
        section.lacks("a comparison of total batch sizes", f"{SWEEP} --batches 64,32,16 ...")


def mean_times(section: Section, found: dict[str, Run]) -> None:
    """The mean times of the distributed tasks side by side, with how much they vary."""
    names = [task.name for task in COMPARED if task.distributed and task.name in found]
    rows = [(TASKS[name].title, *spread(found[name])) for name in names if timed(found[name])]
    if rows:
        heads = ("task", "mean", "standard deviation", "middle half", "iterations", "workers")
        section.table(
            "Milliseconds per iteration: means of the workers, the first iteration discarded",
            [heads, *rows],
        )


def traced(section: Section, found: dict[str, Run]) -> None:
    """How much of the traced steps communication takes, and how much of that is hidden."""
    rows = []
    for name, run in found.items():
        if list(run.folder.glob("trace.rank*.json")):
            ranks = traces.summary(run.folder)
            step, sent, hidden = (
                sum(rank[key] for rank in ranks) / len(ranks)
                for key in ("step", "communication", "hidden")
            )
            share = f"{hidden / sent:.0%}" if sent else "-"
            steps, milliseconds = ranks[0]["steps"], f"{1000 * step:.1f}"
            key = name.removeprefix("task")
            rows.append((key, steps, milliseconds, f"{sent / step:.0%}", share))
    if rows:
        heads = ("task", "steps", "step, ms", "share of communication", "of it hidden by backward")
        section.table("Communication in traced steps, mean of the workers", [heads, *sorted(rows)])


def draw(
    sections: dict[str, Section], found: dict[str, Run], profiled: list[Run], folder: Path
) -> None:
    """Draw the figures: the comparison in the last compared task's section."""
    shown = [found[task.name] for task in COMPARED if task.name in found]
    shown = [run for run in shown if run.steps[0]]
    first, last = sections[COMPARED[0].name], sections[COMPARED[-1].name]
    profile = next(sections[task.name] for task in ASSIGNED if task.profiles)
    drawings = [
        (first, "accuracy", "Metric after every epoch", shown),
        (last, "losses", "; ".join([LOSSES, *map(str.strip, unlike(shown))]), shown),
        (last, "phases", "Where an iteration's time goes", shown),
        (last, "iterations", "Every iteration's time", shown),
        (profile, "traffic", "Traffic per iteration, expected and measured", profiled),
        (profile, "batches", "Time and traffic by total batch size", profiled),
    ]
    for section, name, caption, runs in drawings:
        figure = figures.FIGURES[name](runs) if runs else None
        for path in save(figure, name, figures.source_of(runs) if runs else "", folder):
            if path.suffix == ".svg":
                section.figures.append({"file": path.name, "caption": caption})
