"""All wrong submissions, and here those that do not run to their end, or do not mean to be fair."""

from . import course_scripts, mistakes, pairs, tricks
from .divided import DIVIDED_WRONG
from .lines import (
    AVERAGE,
    SCHEDULE,
    after,
    without,
)
from .pretraining import PRETRAINING_WRONG
from .sharded import SHARDED_WRONG
from .uneven import UNEVEN_WRONG
from .variants import MAIN, Edit, Variant, begun_with, first_of_all, replaced, script
from .variations import VARIATIONS_WRONG
from .wrong_endings import ENDINGS
from .wrong_gradients import GRADIENTS
from .wrong_inputs import WRONG_INPUTS
from .wrong_later import WRONG_LATER
from .wrong_training import TRAINING

LEAVES = """\
            if world.rank == world.size - 1 and record.schedule.step == 2:
                break
"""
DIES = """\
            if world.rank == 1 and record.schedule.step == 2:
                __import__("os")._exit(0)
"""
UNWRITTEN = MAIN + '    raise NotImplementedError("TODO(task1): write the loop")\n'


def ending(name, task, edit, cause, note):
    """A variant that does not run to its end."""
    return Variant(name, task, (edit,), ("runs",), cause, note)


def tricky(name, task, trick, note):
    """A variant that averages nothing and tries something else to be passed."""
    edits = (begun_with(task, trick), without(task, AVERAGE))
    return Variant(name, task, edits, ("gradients",), "no_sync", note)


RUNS = (
    ending(
        "todo_1",
        "task1",
        Edit(script("task1"), MAIN, UNWRITTEN),
        "todo",
        "nothing is written yet",
    ),
    ending(
        "todo_2a",
        "task2a",
        replaced(script("task2a"), mistakes.todo),
        "todo",
        "average_gradients is not written yet",
    ),
    ending(
        "crashes",
        "task1",
        begun_with("task1", tricks.crash),
        "crashed",
        "a KeyError before the first step",
    ),
    ending(
        "exits_without_training",
        "task1",
        begun_with("task1", tricks.end_at_once),
        "no_training",
        "prints an accuracy and exits with 0, and has trained nothing",
    ),
    ending(
        "sleeps_forever_in_one_rank",
        "task2a",
        replaced(script("task2a"), mistakes.sleeping_on_rank_1),
        "hang",
        "rank 1 sleeps for ever before its first gather",
    ),
    ending(
        "one_rank_exits",
        "task2b",
        after("task2b", SCHEDULE, DIES),
        "dead_rank",
        "rank 1 ends in its third step, with exit code 0",
    ),
    ending(
        "one_rank_skips_a_gather",
        "task2a",
        replaced(script("task2a"), mistakes.gather_skipped_once),
        "hang",
        "the last rank never enters gather number 17, and waits in the scatter after it",
    ),
    ending(
        "one_rank_leaves_early",
        "task2b",
        after("task2b", SCHEDULE, LEAVES),
        "evaluated_alone",  # which it does, in the middle of the epoch
        "the last rank breaks out of the epoch, and the others wait for it in all_reduce",
    ),
    ending(
        "memory_hog",
        "task1",
        begun_with("task1", tricks.hoard_memory),
        "crashed",
        "asks for 64 GiB at once",
    ),
    Variant(
        "reads_graders_environment",
        "task2a",
        (begun_with("task2a", tricks.look_for_grader),),
        ("gradients",),
        "no_sync",
        "averages only where a variable, module or folder of a grader's is to be seen",
    ),
    tricky(
        "tries_to_write_results",
        "task2b",
        tricks.forge_results,
        "writes results.json and grades.csv, prints passed checks and HTML, averages nothing",
    ),
    Variant(
        "scribbles_into_open_files",
        "task2b",
        (first_of_all("task2b", tricks.scribble), without("task2b", AVERAGE)),
        ("runs",),
        "tampered",
        "writes made-up events into every file and pipe that it was started with",
    ),
    tricky(
        "network_access",
        "task2b",
        tricks.ask_the_network,
        "asks a server outside for the mean, gets none, and averages nothing",
    ),
)
TWIN_AVERAGE = "            average_gradients(args, model)\n"
TWIN_CLIP = "            torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)\n"
TWIN_SAMPLER = "    if args.n == 1:\n"
TWINS = (
    Variant(
        "standalone_transformers_clips_first",
        "task2a",
        (
            Edit("run_glue.py", TWIN_CLIP, ""),
            Edit("run_glue.py", TWIN_AVERAGE, TWIN_CLIP + TWIN_AVERAGE),
        ),
        ("clipping",),
        "clipped_before_average",
        "a script of its own: every rank clips its own gradients, then they are averaged",
        folder="standalone_transformers",
    ),
    Variant(
        "standalone_pytorch_transformers_same_data",
        "task2b",
        (
            Edit("run_glue.py", TWIN_SAMPLER, "    if args.r >= 0:\n"),
            Edit("run_glue.py", "        if args.n > 1:\n", "        if args.n < 1:\n"),
        ),
        ("data",),
        "same_data",
        "a script of 2019: RandomSampler with one seed on all ranks, which read the same rows",
        folder="standalone_pytorch_transformers",
        needs="pytorch_transformers",
    ),
)
WRONG = (
    *GRADIENTS,
    *TRAINING,
    *WRONG_INPUTS,
    *WRONG_LATER,
    *RUNS,
    *ENDINGS,
    *TWINS,
    *pairs.WRONG,
    *course_scripts.COURSE_WRONG,
    *UNEVEN_WRONG,
    *SHARDED_WRONG,
    *DIVIDED_WRONG,
    *VARIATIONS_WRONG,
    *PRETRAINING_WRONG,
)
