"""The course's tasks, in one table: everything that lists tasks, or treats one specially, reads it.

    python -m common.tasks README.md     # writes the table into a file, between its markers

To add a task, add its folder (run_glue.py, README.md, lesson.diff) and a row here and in
grading/rubric.yaml. A further script of a task that is run like one is a row of VARIANTS.
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
    unequal parts of a batch. `sharded` is what each worker keeps only its part of: of weights,
    gradients and optimizer_state. Where it `overlaps`, the network works on gradients during the
    backward pass. Where the model is `divided`, workers hold parts of one model and read the same
    rows; of a pipeline, `schedule` is the order of its passes: naive, gpipe or 1f1b. `path` is the
    script's of a variant, in a folder with others. A task that `pretrains` reads a corpus, and none
    of GLUE's tasks. One that needs an optional package has its `extra` of pyproject.toml, and is
    run only where it is named.
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
    sharded: tuple[str, ...] = ()
    overlaps: bool = False
    divided: bool = False
    schedule: str = ""
    path: str = ""
    pretrains: bool = False
    extra: str = ""

    @property
    def key(self) -> str:
        """Its short name in flags and tables: "2a"."""
        return self.name.removeprefix("task")

    @property
    def script(self) -> str:
        """Its script's path in the repository, or in a submission."""
        return self.path or f"{self.name}/run_glue.py"

    @property
    def fills_pipeline(self) -> bool:
        """Whether its schedule needs as many micro-batches as stages."""
        return self.schedule == "1f1b"

    @property
    def waits(self) -> bool:
        """Whether its workers wait for each collective, and compute nothing meanwhile."""
        return self.by_hand or (bool(self.sharded) and not self.overlaps)

    @property
    def folder(self) -> str:
        """Its folder in the repository."""
        return self.script.partition("/")[0]

    @property
    def diff(self) -> str:
        """The path of its lesson: what `diff` prints of its base's script and its own."""
        return self.path.replace(".py", ".diff") or f"{self.name}/lesson.diff"

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
        overlaps=True,
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
    ),
)
VARIANTS = (  # graded, as further tasks are, where they are named
    Task(
        "overlap",
        "2(b), further",
        "hiding the all_reduce behind the backward pass",
        base="task2b",
        collectives=("all_reduce",),
        further=True,
        overlaps=True,
        path="task2b/overlap.py",
    ),
    Task(
        "uneven_ddp",
        "5, DDP",
        "the same with DistributedDataParallel",
        base="task3",
        collectives=("all_reduce",),
        further=True,
        weighted=True,
        overlaps=True,
        path="task5/ddp.py",
    ),
    Task(
        "zero1",
        "6, ZeRO-1",
        "sharding: a part of the optimizer's state for each worker",
        base="task2b",
        collectives=("all_reduce", "all_gather"),
        further=True,
        sharded=("optimizer_state",),
        path="task6/zero1.py",
    ),
    Task(
        "zero2",
        "6, ZeRO-2",
        "and a part of the gradients",
        base="zero1",
        collectives=("all_to_all", "all_gather"),
        further=True,
        sharded=("optimizer_state", "gradients"),
        path="task6/zero2.py",
    ),
    Task(
        "fsdp",
        "6, FSDP",
        "and of the weights, with `fully_shard`",
        base="task3",
        collectives=("all_gather", "reduce_scatter"),
        further=True,
        sharded=("optimizer_state", "gradients", "weights"),
        overlaps=True,
        path="task6/fsdp.py",
    ),
    Task(
        "naive",
        "7, naive",
        "model parallelism: some of the layers for each worker",
        base="task1",
        collectives=("send", "recv"),
        further=True,
        divided=True,
        schedule="naive",
        path="task7/naive.py",
    ),
    Task(
        "gpipe",
        "7, GPipe",
        "a pipeline: micro-batches, so that all workers compute at once",
        base="naive",
        collectives=("send", "recv"),
        further=True,
        divided=True,
        schedule="gpipe",
        path="task7/gpipe.py",
    ),
    Task(
        "one_f_one_b",
        "7, 1F1B",
        "the same in another order, which keeps less",
        base="gpipe",
        collectives=("send", "recv"),
        further=True,
        divided=True,
        schedule="1f1b",
        path="task7/one_f_one_b.py",
    ),
    Task(
        "grid",
        "7, 2 x 2",
        "pipelines and data parallelism together",
        base="one_f_one_b",
        collectives=("send", "recv", "all_reduce"),
        further=True,
        divided=True,
        schedule="1f1b",
        path="task7/grid.py",
    ),
    Task(
        "tensor",
        "7, tensors",
        "a part of each layer's matrices for each worker",
        base="task1",
        collectives=("all_reduce",),
        further=True,
        divided=True,
        path="task7/tensor.py",
    ),
    Task(
        "library",
        "7, library",
        "pipelines with PyTorch's `PipelineStage`",
        base="one_f_one_b",
        collectives=("send", "recv"),
        further=True,
        divided=True,
        schedule="1f1b",
        path="task7/library.py",
    ),
    Task(
        "task8",
        "8",
        "pre-training: means over all masked tokens and pairs, LAMB, loss scaling",
        base="task2b",
        collectives=("all_reduce",),
        by_hand=True,
        further=True,
        pretrains=True,
        path="task8/pretrain.py",
    ),
    Task(
        "deepspeed",
        "8, DeepSpeed",
        "the same with DeepSpeed's engine",
        base="task8",
        collectives=("all_reduce",),
        further=True,
        pretrains=True,
        path="task8/pretrain_deepspeed.py",
        extra="deepspeed",
    ),
    Task(
        "finetune",
        "8, RTE",
        "fine-tuning with DeepSpeed's engine",
        base="task3",
        collectives=("all_reduce",),
        further=True,
        path="task8/finetune_deepspeed.py",
        extra="deepspeed",
    ),
)
TASKS = {task.name: task for task in TABLE}
SCRIPTS = TASKS | {task.name: task for task in VARIANTS}
FOLDERS = list(dict.fromkeys(task.folder for task in SCRIPTS.values()))  # in their order
BY_KEY = {task.key: task for task in SCRIPTS.values()}
ASSIGNED = tuple(task for task in TABLE if not task.further)
COMPARED = tuple(task for task in ASSIGNED if not task.profiles)  # each trains in its own way
MARKERS = "<!-- tasks: `python -m common.tasks FILE` writes this table -->", "<!-- end -->"


def name_of(script: str) -> str:
    """The name of a script's task: its folder's, unless the script is a variant there."""
    place = "/".join(Path(script).resolve().parts[-2:])
    return next((task.name for task in VARIANTS if task.script == place), place.partition("/")[0])


def markdown() -> str:
    """The table of the READMEs."""
    rows = []
    for task in sorted(SCRIPTS.values(), key=lambda task: task.folder):
        diff = f"`diff {SCRIPTS[task.base].script} {task.script}`" if task.base else "-"
        rows.append((f"[{task.title}]({task.folder}/README.md)", task.teaches, diff))
    return markdown_table(("task", "what it teaches", "the diff to read"), rows)


def with_table(text: str) -> str:
    """A text with the table between its markers; ValueError where they are missing."""
    return replace_between(text, MARKERS, markdown())


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(with_table(Path(name).read_text()))
