"""A student's report as a PDF: tables and figures from the runs' records, and their own reasoning.

    python -m report.build --template answers.md
    python -m report.build --netid NETID --first First --last Last --answers FILE --runs DIR ...

The first writes the headings for the reasoning; the second makes NetID_First_Last.pdf. What is
missing is listed first, with the command that fills it, and marked in the PDF.
"""

import argparse
import json
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import UserError
from common.record.clock import PHASES
from common.record.traffic import difference
from report import figures, traces
from report.markdown import sections, typst, without_comments
from report.runs import load_run
from report.style import save

ITERATIONS = 40  # that the assignment times, the first of them discarded
EPOCHS = 3
SECTIONS = {  # heading of the report and of answers.md -> what the reasoning is about
    "Task 1: the plain loop": "What do the losses and the metric after every epoch show?",
    "Task 2(a): gather and scatter": "How are gradients synchronised, and what does rank 0 carry?",
    "Task 2(b): all_reduce": "Why are its times what they are, against 2(a)'s?",
    "Task 3: DistributedDataParallel": "What does it do better, and does it show in the times?",
    "Task 4: traffic": "How do expected and counted bytes compare, and with the batch size?",
    "Scalability": "Comment on the scalability of the three ways, from your own measurements.",
}
HERE = Path(__file__).resolve().parent
COMMAND = "python -m cluster.launch --workers 4 task{}/run_glue.py --output_dir runs/task{} ..."
ALONE = (
    "python task1/run_glue.py --do_train --do_eval --num_train_epochs 3 --output_dir runs/task1 ..."
)

SWEEP = "python experiments/traffic.py --output_dir runs/sweep"


@dataclass
class Section:
    """A part of the report: `tables` and `figures` with captions, and what it lacks."""

    title: str
    missing: list = field(default_factory=list)
    tables: list = field(default_factory=list)
    figures: list = field(default_factory=list)
    answer: str = ""

    def lacks(self, what, fix):
        self.missing.append({"what": what, "fix": fix})

    def table(self, caption, rows):
        self.tables.append({"caption": caption, "rows": [list(map(str, row)) for row in rows]})


def timed(run):
    """Mean milliseconds of the phases over iterations 2 to 40 and all ranks, and their number."""
    lines = [line for rank in run.steps for line in rank[1:ITERATIONS]]
    means = {
        phase: 1000 * sum(line["seconds"][phase] for line in lines) / len(lines)
        for phase in (*PHASES, "total")
    } if lines else {}  # fmt: skip
    return means, len(run.steps[0][1:ITERATIONS])


def pick(runs):
    """Task -> its run: of several the one with the most steps; and all runs of task 4."""
    found = {}
    for run in runs:
        name = run.facts["task"].removeprefix("task")
        if name not in found or len(run.steps[0]) > len(found[name].steps[0]):
            found[name] = run
    return found, [run for run in runs if run.traffic and run.traffic["per_iteration"]]


def task1(section, found):
    """Losses of the first five minibatches and the metric after every epoch."""
    run = found.get("1")
    if not run:
        section.lacks("task 1 was not run", ALONE)
        return
    losses = [(f"minibatch {i + 1}", f"{loss:.6f}") for i, loss in enumerate(run.losses[:5])]
    section.table("Loss of the first five minibatches", [("", "loss"), *losses])
    metrics = run.facts["metrics"]
    if len(metrics) < EPOCHS:
        what = f"the metric after {EPOCHS} epochs (there are {len(metrics)})"
        section.lacks(what, ALONE)
    if metrics:
        names = [name for name in metrics[0] if name != "epoch"]
        rows = [(m["epoch"], *(f"{m[name]:.4f}" for name in names)) for m in metrics]
        section.table("Dev set after every epoch", [("epoch", *names), *rows])


def distributed(section, found, task):
    """Losses and the mean time per iteration of one of tasks 2(a), 2(b) and 3."""
    run, command = found.get(task), COMMAND.format(task, task)
    if not run:
        section.lacks(f"task {task} was not run", command)
        return
    means, count = timed(run)
    steps = len(run.steps[0])
    if steps < ITERATIONS:
        what = f"{ITERATIONS} iterations to time (there are {steps})"
        section.lacks(what, f"{command} --max_steps {ITERATIONS}")
    one = found.get("1")
    if one and figures.total_batch(one) != figures.total_batch(run):
        section.lacks(
            f"the total batch is {figures.total_batch(run)}, and task 1's "
            f"{figures.total_batch(one)}: their losses cannot be compared",
            f"{command} --per_gpu_train_batch_size "
            f"{max(1, figures.total_batch(one) // run.facts['world_size'])}",
        )
    ranks = [f"rank {rank}" for rank in range(len(run.steps))]
    rows = [
        (f"minibatch {i + 1}", *(f"{rank[i]['loss']:.6f}" for rank in run.steps), f"{loss:.6f}")
        for i, loss in enumerate(run.losses[:5])
    ]
    section.table("Loss of the first five minibatches", [("", *ranks, "all"), *rows])
    if means:
        section.table(
            f"Milliseconds per iteration: mean of {count} iterations and "
            f"{len(run.steps)} workers, the first iteration discarded",
            [means, [f"{mean:.1f}" for mean in means.values()]],
        )


def task4(section, runs):
    """Traffic expected against counted, of every run that recorded it."""
    if not runs:
        section.lacks("task 4 was not run", f"{SWEEP} ...")
        return
    rows = [
        ("method", "gradients", "total batch", "handed over", "expected", "measured", "difference")
    ]
    for run in runs:
        mean, off = run.traffic["per_iteration"], difference(run.traffic["per_iteration"])
        sizes = (f"{mean[key] / 1e6:.3f}" for key in ("payload", "expected", "measured"))
        kind = (run.traffic["method"], run.traffic["dtype"], figures.total_batch(run))
        rows.append((*kind, *sizes, "-" if off is None else f"{off:+.2f} %"))
    section.table("Traffic per iteration, MB", rows)
    if len({figures.total_batch(run) for run in runs}) < 2:
        section.lacks("a comparison of total batch sizes", f"{SWEEP} --batches 64,32,16 ...")


def traced(section, found):
    """How much of the traced steps communication takes, and how much of that is hidden."""
    rows = []
    for task, run in found.items():
        if list(run.folder.glob("trace.rank*.json")):
            ranks = traces.summary(run.folder)
            step, sent, hidden = (
                sum(rank[key] for rank in ranks) / len(ranks)
                for key in ("step", "communication", "hidden")
            )
            share = f"{hidden / sent:.0%}" if sent else "-"
            rows.append(
                (task, ranks[0]["steps"], f"{1000 * step:.1f}", f"{sent / step:.0%}", share)
            )
    if rows:
        heads = ("task", "steps", "step, ms", "share of communication", "of it hidden by backward")
        section.table("Communication in traced steps, mean of the workers", [heads, *sorted(rows)])


def fill(runs, answers, folder):
    """The report's sections; figures are drawn in `folder`."""
    found, profiled = pick(runs)
    made = {title: Section(title) for title in SECTIONS}
    parts = list(made.values())
    task1(parts[0], found)
    for section, task in zip(parts[1:4], ("2a", "2b", "3"), strict=True):
        distributed(section, found, task)
    traced(parts[3], found)
    task4(parts[4], profiled)
    shown = [found[task] for task in ("1", "2a", "2b", "3") if task in found]
    shown = [run for run in shown if run.steps[0]]
    drawings = [
        (parts[0], "accuracy", "Metric after every epoch", shown),
        (parts[3], "losses", "Loss of every step, and how far each run is from the first", shown),
        (parts[3], "phases", "Where an iteration's time goes", shown),
        (parts[3], "iterations", "Every iteration's time", shown),
        (parts[4], "traffic", "Traffic per iteration, expected and counted", profiled),
        (parts[4], "batches", "Time and traffic by total batch size", profiled),
    ]
    for section, name, caption, of in drawings:
        figure = figures.FIGURES[name](of) if of else None
        for path in save(figure, name, figures.source_of(of) if of else "", folder):
            if path.suffix == ".svg":
                section.figures.append({"file": path.name, "caption": caption})
    for section in parts:
        reasoning = without_comments(answers.get(section.title, ""))
        section.answer = typst(reasoning)
        if not reasoning:
            section.lacks("your reasoning", f'write it in answers.md below "## {section.title}"')
    return parts


def sources(runs):
    """Which run, machine, versions and commit each number comes from, as rows of a table."""
    return [
        ["run", "task", "workers", "machine", "torch", "commit"],
        *(
            [run.folder.name, run.name, str(run.facts["world_size"]), run.facts["processor"],
             run.facts["versions"]["torch"], (run.facts["git_commit"] or "-")[:12]]
            for run in runs
        ),
    ]  # fmt: skip


def build(runs, answers, who, path, pages=None):
    """Print what is missing, with the command that fills it, then write the PDF; returns how many.

    `who` has netid, first and last; `answers` maps headings to Markdown. `pages` is a folder for
    each page as PNG, for a look.
    """
    import typst as compiler

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        parts = fill(runs, answers, folder)
        missing = [(section.title, item) for section in parts for item in section.missing]
        for title, item in missing:
            print(f"missing in {title}: {item['what']}\n    {item['fix']}")
        data = {
            "title": "Distributed training of language models",
            "author": f"{who.first} {who.last}",
            "netid": who.netid,
            "sections": [vars(section) for section in parts],
            "sources": sources(runs),
        }
        (folder / "data.json").write_text(json.dumps(data))
        shutil.copy(HERE / "report.typ", folder)
        if pages:
            pages.mkdir(parents=True, exist_ok=True)
            compiler.compile(folder / "report.typ", output=pages / "page-{n}.png", format="png")
        part = path.with_name(path.name + ".part")
        compiler.compile(folder / "report.typ", output=part, format="pdf")
        part.replace(path)
    return len(missing)


def read_answers(path):
    """Heading -> Markdown of a student's file; raises UserError for what is not the template's."""
    try:
        found = sections(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--answers {path}: cannot be read ({error})") from None
    if unknown := [title for title in found if title not in SECTIONS]:
        raise UserError(
            f"--answers {path}: there is no heading {', '.join(map(repr, unknown))}; the headings "
            f"are {', '.join(map(repr, SECTIONS))}"
        )
    return found


def write_template(path):
    """Write the headings for the reasoning; raises UserError rather than overwrite a file."""
    if path.exists():
        raise UserError(f"--template {path}: is there already; name another file")
    path.write_text(
        "\n".join(f"## {title}\n\n<!-- {about} -->\n" for title, about in SECTIONS.items())
    )


def main(argv=None):
    """Build the report; returns the exit code: 0 even if parts are missing, as they are marked."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--template", type=Path, metavar="FILE", help="write the headings to it")
    for name in ("netid", "first", "last"):
        parser.add_argument(f"--{name}", help="of the file's name and the title")
    parser.add_argument("--runs", nargs="+", default=[], metavar="DIR", help="--output_dir of runs")
    parser.add_argument("--answers", type=Path, help="your reasoning, in Markdown")
    parser.add_argument("--output_dir", type=Path, default=Path(), help="of the PDF (default: .)")
    parser.add_argument("--pages", type=Path, metavar="DIR", help="each page as PNG, too")
    args = parser.parse_args(argv)
    try:
        if args.template:
            write_template(args.template)
            print(f"headings: {args.template}")
            return 0
        lacking = [f"--{n}" for n in ("netid", "first", "last", "answers") if not getattr(args, n)]
        if lacking or not args.runs:
            lacking += [] if args.runs else ["--runs"]
            raise UserError(f"{', '.join(lacking)}: missing; see --help")
        words = [re.sub(r"[^\w.-]+", "-", word) for word in (args.netid, args.first, args.last)]
        path = args.output_dir / ("_".join(words) + ".pdf")
        args.output_dir.mkdir(parents=True, exist_ok=True)
        runs = [load_run(folder) for folder in args.runs]
        missing = build(runs, read_answers(args.answers), args, path, args.pages)
    except UserError as error:
        print(f"report.build: {error}", file=sys.stderr)
        return 2
    print(f"report: {path}" + (f" (parts missing: {missing})" if missing else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
