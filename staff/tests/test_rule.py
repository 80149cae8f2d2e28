"""The rule of the house, over every task's script: nothing but the lesson differs."""

import ast
import difflib
import functools
import subprocess
from pathlib import Path

from common import tasks

import pytest

ROOT = Path(__file__).parents[2]
TASKS = {path.parent.name: path for path in sorted(ROOT.glob("task*/run_glue.py"))}
TASKS |= {task.name: ROOT / task.script for task in tasks.VARIANTS}
TREES = {task: ast.parse(path.read_text()) for task, path in TASKS.items()}

# (from, to): every line of main() that differs, with - and + in front, between its neighbors.
LESSONS = {
    ("task1", "task2a"): [
        "                 loss.backward()",
        "+            # SOLUTION(task2a): average the gradients over the ranks, "
        "before they are clipped",
        "+            average_gradients(model, world)",
        "             clip_grad_norm_(model.parameters(), args.max_grad_norm)",
    ],
    ("task2a", "task2b"): [],
    ("task2b", "overlap"): [
        "     model, data = load(args, world)",
        "+    average_gradients = overlapped(model, world)",
        "     optimizer, scheduler = make_optimizer(model, args, data.total_steps)",
    ],
    ("task1", "task3"): [
        "     model, data = load(args, world)",
        "+    # SOLUTION(task3): wrap the model in DistributedDataParallel, with static_graph=True",
        "+    model = DistributedDataParallel(model, static_graph=True)",
        "     optimizer, scheduler = make_optimizer(model, args, data.total_steps)",
    ],
    ("task2b", "task4"): [
        "     model, data = load(args, world)",
        "+    traffic = Traffic(args, world)",
        '+    if args.method == "3":',
        "+        # SOLUTION(task3): wrap the model in DistributedDataParallel, "
        "with static_graph=True",
        "+        model = DistributedDataParallel(model, static_graph=True)",
        "+    average_gradients = profiled(model, args, traffic)",
        "     optimizer, scheduler = make_optimizer(model, args, data.total_steps)",
        "     for epoch in record.epochs():",
        "-        for batches in record.steps(data, epoch):",
        "+        for batches in traffic.steps(record.steps(data, epoch), epoch):",
        "             optimizer.zero_grad()",
        "     record.finish(model)",
        "+    traffic.finish()",
    ],
    ("task2b", "zero1"): [
        "     model, data = load(args, world)",
        "-    optimizer, scheduler = make_optimizer(model, args, data.total_steps)",
        "+    shards = Shards(model, world, reduce_gradients)",
        "+    optimizer, scheduler = make_optimizer(shards, args, data.total_steps)",
        "     record = Record(args, world, model, data, optimizer)",
        "                 loss.backward()",
        "-            # SOLUTION(task2a): average the gradients over the ranks, "
        "before they are clipped",
        "-            average_gradients(model, world)",
        "-            clip_grad_norm_(model.parameters(), args.max_grad_norm)",
        "+            clip_grad_norm(shards, args.max_grad_norm)",
        "             # SOLUTION(task1): update the weights",
        "             optimizer.step()",
        "+            gather_weights(shards)",
        "             scheduler.step()",
    ],
    ("task3", "uneven_ddp"): [
        "                 loss = model(**batch).loss * weight",
        "+                # SOLUTION(uneven_ddp): scale the loss so that the mean is one "
        "over examples",
        "+                loss = loss * world.size * batches.examples / batches.total",
        "                 # SOLUTION(task1): run the backward pass, "
        "which fills every parameter's .grad",
    ],
    ("zero1", "zero2"): [
        "     model, data = load(args, world)",
        "-    shards = Shards(model, world, reduce_gradients)",
        '+    own = args.reduce_scatter == "own"',
        "+    shards = Shards(model, world, reduce_gradients if own else reduce_by_backend)",
        "     optimizer, scheduler = make_optimizer(shards, args, data.total_steps)",
    ],
    ("task3", "fsdp"): [
        "     model, data = load(args, world)",
        "-    # SOLUTION(task3): wrap the model in DistributedDataParallel, with static_graph=True",
        "-    model = DistributedDataParallel(model, static_graph=True)",
        "+    shard(model, args)",
        "     optimizer, scheduler = make_optimizer(model, args, data.total_steps)",
    ],
    ("task1", "naive"): [
        "     model, data = load(args, world)",
        "+    model = Stage(model, args, world)",
        "     optimizer, scheduler = make_optimizer(model, args, data.total_steps)",
        "             for batch, weight in batches:  # one batch, unless gradients are accumulated",
        "-                loss = model(**batch).loss * weight",
        "-                # SOLUTION(task1): run the backward pass, "
        "which fills every parameter's .grad",
        "-                loss.backward()",
        "-            clip_grad_norm_(model.parameters(), args.max_grad_norm)",
        "+                inputs, outputs = forward(model, batch, weight)",
        "+                backward(model, inputs, outputs)",
        "+            clip_grad_norm(model, args.max_grad_norm)",
        "             # SOLUTION(task1): update the weights",
    ],
    ("naive", "gpipe"): [
        "             optimizer.zero_grad()",
        "-            for batch, weight in batches:  # one batch, unless gradients are accumulated",
        "-                inputs, outputs = forward(model, batch, weight)",
        "-                backward(model, inputs, outputs)",
        "+            kept = []  # what the micro-batches on their way need to go back",
        "+            # SOLUTION(gpipe): run all micro-batches forward, and keep what each returns",
        "+            for batch, weight in batches:",
        "+                kept.append(forward(model, batch, weight))",
        "+            while kept:",
        "+                backward(model, *kept.pop(0))",
        "             clip_grad_norm(model, args.max_grad_norm)",
    ],
    ("gpipe", "one_f_one_b"): [
        "             kept = []  # what the micro-batches on their way need to go back",
        "-            # SOLUTION(gpipe): run all micro-batches forward, and keep what each returns",
        "+            # SOLUTION(one_f_one_b): go back once more are kept "
        "than there are stages after this",
        "             for batch, weight in batches:",
        "                 kept.append(forward(model, batch, weight))",
        "+                if len(kept) > model.stages_after:",
        "+                    oldest = kept.pop(0)",
        "+                    backward(model, *oldest)",
        "             while kept:",
    ],
    ("one_f_one_b", "grid"): [
        "                 backward(model, *kept.pop(0))",
        "+            # SOLUTION(grid): average the gradients over the replicas, "
        "before they are clipped",
        "+            average_gradients(model, world)",
        "             clip_grad_norm(model, args.max_grad_norm)",
    ],
    ("task1", "tensor"): [
        "     model, data = load(args, world)",
        "+    divide(model, args, world)",
        "     optimizer, scheduler = make_optimizer(model, args, data.total_steps)",
        "                 loss.backward()",
        "-            clip_grad_norm_(model.parameters(), args.max_grad_norm)",
        "+            clip_grad_norm(model, args.max_grad_norm)",
        "             # SOLUTION(task1): update the weights",
    ],
    ("task2b", "task8"): [
        "     model, data = load(args, world)",
        "-    optimizer, scheduler = make_optimizer(model, args, data.total_steps)",
        "-    record = Record(args, world, model, data, optimizer)",
        "+    optimizer, scheduler, scaler = make_optimizer(model, args, data.total_steps)",
        "+    record = PretrainingRecord(args, world, model, data, optimizer, scaler)",
        "     for epoch in record.epochs():",
        "             optimizer.zero_grad()",
        "+            weigh(batches, world)",
        "             for batch, weight in batches:  # one batch, unless gradients are accumulated",
        "-                loss = model(**batch).loss * weight",
        "-                # SOLUTION(task1): run the backward pass, "
        "which fills every parameter's .grad",
        "-                loss.backward()",
        "-            # SOLUTION(task2a): average the gradients over the ranks, "
        "before they are clipped",
        "+                loss = (model(**batch).loss * weight).sum()  "
        "# of masked tokens, and of pairs",
        "+                # SOLUTION(task8): run the backward pass of the scaled loss",
        "+                scaler.scale(loss).backward()",
        "+            # SOLUTION(task8): average the gradients over the ranks, as in task 2(b)",
        "             average_gradients(model, world)",
        "+            # SOLUTION(task8): divide the gradients by the loss scale, "
        "before they are clipped",
        "+            scaler.unscale_(optimizer)",
        "             clip_grad_norm_(model.parameters(), args.max_grad_norm)",
        "-            # SOLUTION(task1): update the weights",
        "-            optimizer.step()",
        "-            scheduler.step()",
        "+            # SOLUTION(task8): update the weights, unless a gradient has overflowed",
        "+            scaler.step(optimizer)",
        "+            if scaler.update():  # adapts the loss scale, and returns whether weights "
        "were updated",
        "+                scheduler.step()",
        "         # SOLUTION(task1): evaluate on the dev set and pass the scores to "
        "record.end_epoch",
    ],
    ("task8", "deepspeed"): [
        " def main(args, world):",
        "+    deepspeed = import_deepspeed(world)",
        "     model, data = load(args, world)",
        "-    optimizer, scheduler, scaler = make_optimizer(model, args, data.total_steps)",
        "-    record = PretrainingRecord(args, world, model, data, optimizer, scaler)",
        "+    optimizer, scheduler, _ = make_optimizer(model, args, data.total_steps)",
        "+    # SOLUTION(deepspeed): initialize the engine with model, optimizer, scheduler, "
        "and config",
        "+    model, *_ = deepspeed.initialize(",
        "+        model=model, optimizer=optimizer, lr_scheduler=scheduler, "
        "config=engine_config(args)",
        "+    )",
        "+    record = PretrainingRecord(args, world, model, data, optimizer, LossScale(model))",
        "     for epoch in record.epochs():",
        "         for batches in record.steps(data, epoch):",
        "-            optimizer.zero_grad()",
        "             weigh(batches, world)",
        "                 loss = (model(**batch).loss * weight).sum()  "
        "# of masked tokens, and of pairs",
        "-                # SOLUTION(task8): run the backward pass of the scaled loss",
        "-                scaler.scale(loss).backward()",
        "-            # SOLUTION(task8): average the gradients over the ranks, as in task 2(b)",
        "-            average_gradients(model, world)",
        "-            # SOLUTION(task8): divide the gradients by the loss scale, "
        "before they are clipped",
        "-            scaler.unscale_(optimizer)",
        "-            clip_grad_norm_(model.parameters(), args.max_grad_norm)",
        "-            # SOLUTION(task8): update the weights, unless a gradient has overflowed",
        "-            scaler.step(optimizer)",
        "-            if scaler.update():  # adapts the loss scale, and returns whether weights "
        "were updated",
        "-                scheduler.step()",
        "+                # SOLUTION(deepspeed): run the engine's backward pass; scale nothing",
        "+                model.backward(loss, scale_wrt_gas=False)",
        "+            # SOLUTION(deepspeed): let the engine average, unscale and clip, "
        "and update the weights",
        "+            model.step()",
        "         # SOLUTION(task1): evaluate on the dev set and pass the scores to "
        "record.end_epoch",
    ],
    ("task3", "finetune"): [
        " def main(args, world):",
        "+    deepspeed = import_deepspeed(world)",
        "     model, data = load(args, world)",
        "-    # SOLUTION(task3): wrap the model in DistributedDataParallel, with static_graph=True",
        "-    model = DistributedDataParallel(model, static_graph=True)",
        "     optimizer, scheduler = make_optimizer(model, args, data.total_steps)",
        "+    # SOLUTION(finetune): initialize the engine",
        "+    model, *_ = deepspeed.initialize(",
        "+        model=model, optimizer=optimizer, lr_scheduler=scheduler, "
        "config=engine_config(args)",
        "+    )",
        "     record = Record(args, world, model, data, optimizer)",
        "         for batches in record.steps(data, epoch):",
        "-            optimizer.zero_grad()",
        "             for batch, weight in batches:  # one batch, unless gradients are accumulated",
        "                 loss = model(**batch).loss * weight",
        "-                # SOLUTION(task1): run the backward pass, "
        "which fills every parameter's .grad",
        "-                loss.backward()",
        "-            clip_grad_norm_(model.parameters(), args.max_grad_norm)",
        "-            # SOLUTION(task1): update the weights",
        "-            optimizer.step()",
        "-            scheduler.step()",
        "+                # SOLUTION(finetune): run the engine's backward pass",
        "+                model.backward(loss, scale_wrt_gas=False)",
        "+            # SOLUTION(finetune): let the engine average, unscale and clip, "
        "and update the weights",
        "+            model.step()",
        "         # SOLUTION(task1): evaluate on the dev set and pass the scores to "
        "record.end_epoch",
    ],
    ("one_f_one_b", "library"): [
        " def main(args, world):",
        "+    args.padded = True  # the schedules have buffers of one shape",
        "     model, data = load(args, world)",
        "             optimizer.zero_grad()",
        "-            kept = []  # what the micro-batches on their way need to go back",
        "-            # SOLUTION(one_f_one_b): go back once more are "
        "kept than there are stages after this",
        "-            for batch, weight in batches:",
        "-                kept.append(forward(model, batch, weight))",
        "-                if len(kept) > model.stages_after:",
        "-                    oldest = kept.pop(0)",
        "-                    backward(model, *oldest)",
        "-            while kept:",
        "-                backward(model, *kept.pop(0))",
        "+            forward_backward(model, batches, args)",
        "             clip_grad_norm(model, args.max_grad_norm)",
    ],
    ("task2b", "task5"): [
        "                 loss.backward()",
        "-            # SOLUTION(task2a): average the gradients over the ranks, "
        "before they are clipped",
        "-            average_gradients(model, world)",
        "+            # SOLUTION(task5): average them over the examples of all ranks, "
        "before they are clipped",
        "+            average_gradients(model, batches.examples)",
        "             clip_grad_norm_(model.parameters(), args.max_grad_norm)",
    ],
}
# What a script defines besides main().
DEFINED = {
    "task1": [],
    "task2a": ["average_gradients"],
    "task2b": ["average_gradients"],
    "overlap": ["BUCKET", "overlapped"],
    "task3": [],
    "task4": ["FLAGS", "AVERAGE", "profiled", "in_dtype"],
    "task5": ["average_gradients"],
    "uneven_ddp": [],
    "zero1": ["reduce_gradients"],
    "zero2": ["FLAGS", "reduce_gradients", "reduce_by_backend"],
    "fsdp": ["FLAGS", "shard"],
    "task8": ["weigh"],
    "deepspeed": [],
    "finetune": ["FLAGS"],
    "naive": ["forward", "backward"],
    "gpipe": ["forward", "backward"],
    "one_f_one_b": ["forward", "backward"],
    "grid": ["forward", "backward", "average_gradients"],
    "tensor": ["Copy", "Sum", "divide"],
    "library": ["SCHEDULES", "FLAGS", "forward_backward"],
}
PIPELINES = ("naive", "gpipe", "one_f_one_b", "grid", "library")
STAGES = {"common.layers.FLAGS", "common.models.stage.Stage", "common.models.stage.clip_grad_norm"}
SCHEDULES = ("Schedule1F1B", "ScheduleGPipe", "ScheduleInterleaved1F1B")
ENGINES = ("deepspeed", "finetune")
ENGINE = ("LossScale", "engine_config", "import_deepspeed")
PARTS = ("blocks_of", "clip_grad_norm", "keep_part", "prepare")
SHARDS = [f"common.shards.{name}" for name in ("Shards", "clip_grad_norm", "gather_weights")]
# What of a script's imports task 1 does not have: the lesson's own tools.
IMPORTED = {
    "task1": set(),
    "task2a": {"common.gradients.SLICE", "common.gradients.flat_gradients"}
    | {"torch", "torch.distributed"},
    "task2b": {"common.gradients.flat_gradients", "torch.distributed"},
    "overlap": {"common.gradients.flat_gradients", "common.gradients.gradient_buckets"}
    | {"torch", "torch.distributed"},
    "task3": {"torch.nn.parallel.DistributedDataParallel"},
    "task5": {"common.gradients.flat_gradients", "torch.distributed"},
    "uneven_ddp": {"torch.nn.parallel.DistributedDataParallel"},
    "zero1": {*SHARDS, "torch.distributed"},
    "zero2": {*SHARDS, "common.flags.Flag", "torch", "torch.distributed"},
    "fsdp": {"common.flags.Flag", "torch", "torch.distributed.fsdp.fully_shard"}
    | {"torch.distributed.fsdp.MixedPrecisionPolicy"},
    "task8": {"task2b.run_glue.average_gradients", "common.norms.clip_grad_norm_"}
    | {f"common.pretraining.{name}" for name in ("evaluate", "load", "make_optimizer")}
    | {"common.pretraining_flags.FLAGS", "common.record.pretraining.PretrainingRecord"}
    | {"torch", "torch.distributed"},
    "deepspeed": {f"common.engine.{name}" for name in ENGINE}
    | {f"common.pretraining.{name}" for name in ("evaluate", "load", "make_optimizer")}
    | {"common.pretraining_flags.FLAGS", "common.record.pretraining.PretrainingRecord"}
    | {"task8.pretrain.weigh"},
    "finetune": {f"common.engine.{name}" for name in ENGINE[1:]} | {"common.flags.Flag"},
    **dict.fromkeys(PIPELINES, STAGES),
    "library": STAGES
    | {"common.flags.Flag", "torch"}
    | {f"common.models.scheduled.{name}" for name in ("alike", "pipeline_stage")}
    | {f"torch.distributed.pipelining.{name}" for name in SCHEDULES},
    "grid": STAGES - {"common.layers.FLAGS"}
    | {"common.gradients.flat_gradients", "common.layers.GRID_FLAGS", "torch.distributed"},
    "tensor": {f"common.models.tensor_parallel.{name}" for name in PARTS}
    | {"torch", "torch.distributed", "torch.nn.functional.linear"},
    "task4": {"task2a.run_glue", "task2b.run_glue", "common.flags.Flag"}
    | {"common.record.traffic.Traffic", "torch", "torch.distributed"}
    | {"torch.nn.parallel.DistributedDataParallel"},
}
# What of task 1's imports a script has no use for.
SHARDED = ("zero1", "zero2")
NOT_IMPORTED = {key: {"torch.nn.utils.clip_grad_norm_"} for key in (*SHARDED, *PIPELINES, "tensor")}
NOT_IMPORTED["task8"] = {
    *("common.load.load", "common.models.evaluate.evaluate", "common.record.record.Record"),
    *("common.models.optimizer.make_optimizer", "torch.nn.utils.clip_grad_norm_"),
}
NOT_IMPORTED["deepspeed"] = NOT_IMPORTED["task8"]
NOT_IMPORTED["finetune"] = {"torch.nn.utils.clip_grad_norm_"}
# The most lines that may differ, docstrings aside, and the most that a script may have.
CHANGED = {"task2a": 20, "task2b": 16, "overlap": 36, "task3": 4, "task4": 70, "task5": 10}
CHANGED |= {"uneven_ddp": 2, "zero1": 36, "zero2": 20, "fsdp": 24, "task8": 40}
CHANGED |= {"naive": 28, "gpipe": 10, "one_f_one_b": 5, "grid": 14, "tensor": 42}
CHANGED |= {"library": 64, "deepspeed": 42, "finetune": 30}
LENGTH = {"task4": 100, "overlap": 80, "zero2": 64, "one_f_one_b": 62, "grid": 74, "tensor": 84}


def function(task, name):
    """The one function of that name in a task's script."""
    (found,) = (n for n in TREES[task].body if isinstance(n, ast.FunctionDef) and n.name == name)
    return found


def source(task, name):
    """The lines of a function in a task's script, comments too."""
    node = function(task, name)
    return TASKS[task].read_text().splitlines()[node.lineno - 1 : node.end_lineno]


def differences(before, after):
    """The lines that differ and their neighbors, as a patch lists them."""
    lines = list(difflib.unified_diff(before, after, n=1, lineterm=""))[2:]
    return [line for line in lines if not line.startswith("@@")]


def imports(tree):
    """The dotted names of everything that is imported anywhere in a module."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def line_of(tree, call):
    """The line of the one call of that name in a tree."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    first, *more = (node.lineno for node in calls if ast.unparse(node.func) == call)
    assert not more or call == "backward", f"{call} is called on lines {first, *more}"
    return first


def test_every_task_has_its_rule():
    assert set(TASKS) == set(tasks.SCRIPTS)
    table = tasks.SCRIPTS.values()
    assert {(task.base, task.name) for task in table if task.base} == set(LESSONS)
    assert set(TASKS) == set(DEFINED) == set(IMPORTED) == {t for pair in LESSONS for t in pair}


@pytest.mark.parametrize(("before", "after"), LESSONS, ids=map("-".join, LESSONS))
def test_nothing_but_the_lesson_differs_between(before, after):
    found = differences(source(before, "main"), source(after, "main"))
    assert found == LESSONS[before, after], (
        f"the lesson from {before} to {after} is no longer what LESSONS says; main() differs by\n"
        + "\n".join(found)
    )


@pytest.mark.parametrize("task", TASKS)
def test_around_main_there_is_only_the_lesson_too(task):
    body = TREES[task].body
    assert ast.get_docstring(TREES[task])
    assert imports(TREES[task]) - imports(TREES["task1"]) == IMPORTED[task]
    assert imports(TREES["task1"]) - NOT_IMPORTED.get(task, set()) <= imports(TREES[task])
    kinds = (ast.Import, ast.ImportFrom)
    rest = [node for node in body[1:] if not isinstance(node, kinds)]
    names = [
        ast.unparse(node.targets) if isinstance(node, ast.Assign) else node.name
        for node in rest[:-1]
    ]
    assert names == [*DEFINED[task], "main"]
    own = "FLAGS" in DEFINED[task] or "common.pretraining_flags.FLAGS" in IMPORTED[task]
    own = own or task in PIPELINES
    flags = ", FLAGS" if own else ""
    flags = ", GRID_FLAGS" if task == "grid" else flags
    start = f"if __name__ == '__main__':\n    run(main, __file__{flags})"
    assert ast.unparse(rest[-1]) == start


@pytest.mark.parametrize("task", TASKS)
def test_a_step_does_its_parts_in_order(task):
    main = function(task, "main")
    passes = ["forward", "backward"] if task in PIPELINES else ["model", "loss.backward"]
    passes = ["forward_backward"] if task == "library" else passes
    parts = ["optimizer.zero_grad", *passes, "average_gradients"]
    sharded = {"zero1": "Shards", "zero2": "Shards", "fsdp": "shard", "tensor": "divide"}
    sharded |= dict.fromkeys(PIPELINES, "Stage") | dict.fromkeys(ENGINES, "deepspeed.initialize")
    gathers = task in ("zero1", "zero2")
    own = gathers or task in (*PIPELINES, "tensor")
    parts += ["clip_grad_norm" if own else "clip_grad_norm_", "optimizer.step"]
    parts += ["gather_weights"] * gathers + ["scheduler.step"]
    if task == "task8":
        parts[2:3] = ["scaler.scale(loss).backward"]
        parts[4:6] = ["scaler.unscale_", "clip_grad_norm_", "scaler.step", "scaler.update"]
    if task in ENGINES:
        parts = ["deepspeed.initialize", "model.backward", "model.step"]
    called = {ast.unparse(node.func) for node in ast.walk(main) if isinstance(node, ast.Call)}
    averages = "average_gradients" in called
    assert averages == (task in ("task2a", "task2b", "overlap", "task4", "task5", "grid", "task8"))
    wrapper = sharded.get(task, "DistributedDataParallel")
    assert averages or task == "task1" or wrapper in called
    lines = [line_of(main, part) for part in parts if averages or part != "average_gradients"]
    assert lines == sorted(lines), "averaging comes after backward and before clipping"


@pytest.mark.parametrize("task", ["task2a", "task2b", "overlap", "task4", "task5", "grid", "task8"])
def test_gradients_are_averaged_once_per_step_and_not_per_micro_batch(task):
    main = function(task, "main")
    micro_batches = max(
        (node for node in ast.walk(main) if isinstance(node, ast.For)), key=lambda n: n.lineno
    )
    assert ast.unparse(micro_batches.iter) == "batches"
    assert line_of(main, "average_gradients") > micro_batches.end_lineno


def test_2a_and_2b_differ_in_the_body_of_one_function_alone():
    ours, theirs = (function(task, "average_gradients") for task in ("task2a", "task2b"))
    assert ast.unparse(ours.args) == ast.unparse(theirs.args) == "model, world"
    assert ast.get_docstring(ours)
    assert ast.get_docstring(theirs)
    calls = {
        task: {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
        for task, tree in (("task2a", ours), ("task2b", theirs))
    }
    collectives = {
        task: {name for name in names if name.startswith("dist.")} for task, names in calls.items()
    }
    assert collectives == {"task2a": {"dist.gather", "dist.scatter"}, "task2b": {"dist.all_reduce"}}


def without_docstrings(path):
    """The lines of a script, less docstrings, blank lines and the handout's marks."""
    tree = ast.parse(path.read_text())
    lines = path.read_text().splitlines()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            text = node.body[0]
            lines[text.lineno - 1 : text.end_lineno] = [""] * (text.end_lineno - text.lineno + 1)
    return [line for line in lines if line.strip() and "# SOLUTION(" not in line]


@pytest.mark.parametrize(("before", "after"), LESSONS, ids=map("-".join, LESSONS))
def test_lesson_diff_is_what_diff_prints(before, after):
    """It holds all that differs, with nothing left out."""
    command = ["diff", tasks.SCRIPTS[before].script, tasks.SCRIPTS[after].script]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert (ROOT / tasks.SCRIPTS[after].diff).read_text() == result.stdout


@pytest.mark.parametrize(("before", "after"), LESSONS, ids=map("-".join, LESSONS))
def test_a_lesson_changes_few_lines(before, after):
    old, new = (without_docstrings(TASKS[task]) for task in (before, after))
    found = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
    changed = [line for line in found if line[0] in "+-"]
    assert len(changed) <= CHANGED[after], "\n".join(changed)


def test_task_4_profiles_the_lessons_and_not_copies_of_them():
    import task2a.run_glue
    import task2b.run_glue
    import task4.run_glue

    profiled = task4.run_glue.AVERAGE
    assert profiled["2a"] is task2a.run_glue.average_gradients
    assert profiled["2b"] is task2b.run_glue.average_gradients
    wrapped = [line[1:].strip() for line in LESSONS["task1", "task3"] if line[0] == "+"]
    lines = [line.strip() for line in source("task4", "main")]
    assert lines[(at := lines.index(wrapped[0])) : at + 2] == wrapped


@pytest.mark.parametrize("task", TASKS)
def test_a_script_is_short_and_its_loop_fits_on_a_screen(task):
    lines = TASKS[task].read_text().splitlines()
    assert len([line for line in lines if "# SOLUTION(" not in line]) <= LENGTH.get(task, 60)
    main = [line for line in source(task, "main") if "# SOLUTION(" not in line]
    assert len(main) <= {"task4": 24, "one_f_one_b": 21, "grid": 22}.get(task, 19)


# The floors of the house: a file imports from its own room and from lower floors.
FLOORS = {
    "common": 0,
    **dict.fromkeys(["cluster", "report", *tasks.TASKS], 1),
    **{"experiments": 2, "grading": 2, "staff": 3},
}
BESIDE = {("task4", "task2a"), ("task4", "task2b")}  # task 4 profiles the lessons themselves


@functools.cache
def modules():
    """Dotted name -> path, of every module in the rooms but for tests and submissions."""
    found = {}
    for room in FLOORS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if {"tests", "gallery", "overlay"}.isdisjoint(parts):
                found[".".join(parts).removesuffix(".__init__")] = path
    return found


def arrows():
    """Module -> the modules in the rooms that it imports, lazily or not."""
    known = modules()
    graph = {}
    for name, path in known.items():
        found = imports(ast.parse(path.read_text()))
        homes = {each if each in known else each.rpartition(".")[0] for each in found}
        graph[name] = (homes & known.keys()) - {name}
    return graph


def circle(graph):
    """The nodes of a graph that lie on a circle, or lead to one."""
    left = {node: set(below) - {node} for node, below in graph.items()}
    while free := {node for node, below in left.items() if not below & left.keys()}:
        for node in free:
            del left[node]
    return sorted(left)


def test_there_is_no_circle_of_files():
    assert circle(arrows()) == []


def folder(name):
    """The folder within a room that a module lies in; a file beside the folders is its own."""
    place = modules()[name].relative_to(ROOT).parent
    return str(place) if len(place.parts) > 1 else name


def test_there_is_no_circle_of_folders():
    graph = {}
    for name, below in arrows().items():
        graph.setdefault(folder(name), set()).update(map(folder, below))
    assert circle(graph) == []


def test_no_arrow_leads_to_a_higher_floor_nor_to_a_neighbor():
    wrong = []
    for name, below in arrows().items():
        room = name.split(".")[0]
        for other in {each.split(".")[0] for each in below} - {room}:
            if FLOORS[other] >= FLOORS[room] and (room, other) not in BESIDE:
                wrong.append(f"{name} imports {other}")
    assert wrong == []
