"""The course's tasks, in one table: everything that lists tasks, or treats one specially, reads it.

    python -m common.tasks README.md     # writes the table into a file, between its markers

To add a task, add its folder (run_glue.py, README.md, lesson.diff) and a row here and in
grading/rubric.yaml.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from common.tables import markdown_table, replace_between


@dataclass(frozen=True)
class ShortRun:
    """A further run of a task in `make demo`, of a few steps: what differs from the task's own."""

    suffix: str  # of its folder's name
    flags: str = ""
    total_batch: int | None = None


@dataclass(frozen=True)
class Task:
    """One task of the course.

    `name` is its folder, `title` how texts name it. `base` is the task whose script it differs from
    by the lesson alone. `collectives` are those that its gradients travel by; with `by_hand` its
    script calls them between the backward pass and the update. `profiles` is the task whose
    synchronization it measures by default. `demo` has its further short runs in `make demo`. A
    `further` task is not part of the assignment: what runs, reports on or grades all tasks leaves
    it out unless it is named. Where gradients are `weighted` by their examples, workers may read
    unequal parts of a batch. `beside` is script -> base, of further scripts in its folder.
    """

    name: str
    title: str
    teaches: str
    base: str | None = None
    collectives: tuple[str, ...] = ()
    by_hand: bool = False
    profiles: str | None = None
    demo: tuple[ShortRun, ...] = ()
    further: bool = False
    weighted: bool = False
    beside: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        """Its short name in flags and tables: "2a"."""
        return self.name.removeprefix("task")

    @property
    def script(self) -> str:
        """Its script's path in the repository, or in a submission."""
        return f"{self.name}/run_glue.py"

    @property
    def distributed(self) -> bool:
        """Whether it runs on several workers."""
        return bool(self.collectives)

    @property
    def strategy(self) -> str:
        """The task whose way of synchronizing it uses: its own, unless it profiles another's."""
        return self.profiles or self.name


TABLE = (
    Task("task1", "1", "the plain loop"),
    Task(
        "task2a",
        "2(a)",
        "averaging gradients with gather and scatter",
        base="task1",
        collectives=("gather", "scatter"),
        by_hand=True,
    ),
    Task(
        "task2b",
        "2(b)",
        "the same with all_reduce",
        base="task2a",
        collectives=("all_reduce",),
        by_hand=True,
    ),
    Task(
        "task3",
        "3",
        "DistributedDataParallel",
        base="task1",
        collectives=("all_reduce",),
    ),
    Task(
        "task4",
        "4",
        "how many bytes it all moves",
        base="task2b",
        collectives=("all_reduce",),
        profiles="task2b",
        demo=(
            ShortRun("2a", "--method 2a"),
            ShortRun("3", "--method 3"),
            ShortRun("16", total_batch=16),
        ),
    ),
    Task(
        "task5",
        "5",
        "uneven workers: every example counts the same",
        base="task2b",
        collectives=("all_reduce",),
        by_hand=True,
        further=True,
        weighted=True,
        beside=(("ddp.py", "task3"),),
    ),
)
TASKS = {task.name: task for task in TABLE}
BY_KEY = {task.key: task for task in TABLE}
ASSIGNED = tuple(task for task in TABLE if not task.further)
COMPARED = tuple(task for task in ASSIGNED if not task.profiles)  # each trains in its own way
MARKERS = "<!-- tasks: `python -m common.tasks FILE` writes this table -->", "<!-- end -->"


def markdown() -> str:
    """The table of the READMEs."""
    rows = []
    for task in TABLE:
        diff = f"`diff {TASKS[task.base].script} {task.script}`" if task.base else "-"
        rows.append((f"[{task.title}]({task.name}/README.md)", task.teaches, diff))
    return markdown_table(("task", "what it teaches", "the diff to read"), rows)


def with_table(text: str) -> str:
    """A text with the table between its markers; ValueError where they are missing."""
    return replace_between(text, MARKERS, markdown())


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(with_table(Path(name).read_text()))
