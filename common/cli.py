"""The assignment's flags in one table; every problem is reported at once, with its fix."""

import argparse
import difflib
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common.commands import program
from common.data.glue import find_glue_task
from common.errors import UserError
from common.flags import FLAGS, describe
from common.layers import problems_with_stages
from common.own_task import OWN_TASKS, PRETRAINING
from common.tasks import SCRIPTS, name_of
from common.uneven import problems_with_split
from common.workers import launchers

MISSING = object()  # the value of a flag that was given none
DISTRIBUTED = ("master_ip", "master_port", "world_size", "local_rank")


class Parser(argparse.ArgumentParser):
    """argparse, except that a problem is raised instead of ending the process."""

    def error(self, message):
        raise UserError(message)


def parse_args(script, extra=(), argv=None, env=os.environ, about=None):
    """Read a task's command line; raise UserError with every problem found and its fix.

    `script` is the task's file; its name in the table of tasks becomes `args.task`. `extra` are
    Flags of that task alone. Returns a Namespace with a value of the right type for each flag; the
    four distributed flags are filled in from torchrun or srun if they were left out. `about` is the
    text of --help; without it, the docstring of the program.
    """
    flags = list({flag.name: flag for flag in (*FLAGS, *extra)}.values())
    parser = Parser(
        prog=program(), allow_abbrev=False, description=about or sys.modules["__main__"].__doc__
    )
    for flag in flags:
        value = {"metavar": "VALUE", "nargs": "?", "const": MISSING}
        action: dict[str, Any] = {"action": "store_true"} if flag.type is bool else value
        parser.add_argument(f"--{flag.name}", default=None, help=describe(flag), **action)
    given, unknown = parser.parse_known_args(argv)

    problems = [unknown_flag(word, flags) for word in unknown if word.startswith("-")]
    problems = problems or [f"{word}: is neither a flag nor the value of one" for word in unknown]
    texts = {name: text for name, text in vars(given).items() if text is not None}
    args = argparse.Namespace(task=name_of(script), launcher="the command line")
    needed = fill_from_init_method(texts, problems)
    fill_from_launcher(texts, args, env, problems, needed)
    if "do_train" in texts and launchers.restarts(env):
        texts.setdefault("resume", "auto")
    for flag in flags:
        try:
            setattr(args, flag.name, value_of(flag, texts.get(flag.name)))
        except ValueError as problem:
            problems.append(str(problem))
            setattr(args, flag.name, None)
    problems += contradictions(args) + problems_with_split(args, texts) + problems_with_stages(args)
    if problems:
        raise UserError("\n".join(f"- {problem}" for problem in problems))
    return args


def comma_separated(text):
    """The comma-separated words of a flag."""
    return [word.strip() for word in text.split(",") if word.strip()]


def value_of(flag, text):
    """The value that a flag's text stands for; raises UserError with what is allowed."""
    if text is None:
        if flag.default is None:
            raise UserError(f"--{flag.name} is missing: {flag.help}")
        return flag.default
    if text is MISSING and flag.bare is not None:
        return flag.bare
    if text is MISSING:
        raise UserError(f"--{flag.name}: the value is missing: {flag.help}")
    if isinstance(flag.type, tuple):
        if text not in flag.type:
            raise UserError(f"--{flag.name} {text}: must be one of {', '.join(flag.type)}")
        return text
    try:
        value = flag.type(text)
    except ValueError:
        kind = {int: "a whole number", float: "a number"}[flag.type]
        raise UserError(f"--{flag.name} {text}: must be {kind}") from None
    if flag.at_least is not None and not flag.at_least <= value < float("inf"):
        why = " (lower ports need root)" if flag.name == "master_port" else ""
        finite = " and finite" if flag.type is float else ""
        raise UserError(f"--{flag.name} {text}: must be at least {flag.at_least:g}{finite}{why}")
    if flag.at_most is not None and value > flag.at_most:
        raise UserError(f"--{flag.name} {text}: must be at most {flag.at_most}")
    return value


def unknown_flag(word, flags):
    """The problem with a word that is not a flag, with the closest flag."""
    close = difflib.get_close_matches(word, [f"--{flag.name}" for flag in flags], n=1)
    return f"{word}: unknown flag" + (f"; did you mean {close[0]}?" if close else "")


def fill_from_init_method(texts, problems):
    """Take the master's address from --init_method tcp://; returns the flags still needed."""
    text = texts.get("init_method")
    if text in (None, MISSING):
        return DISTRIBUTED
    tcp = re.fullmatch(r"tcp://\[?([^\[\]]+?)\]?:(\d+)", text)
    if {"master_ip", "master_port"} & set(texts):
        problems.append(
            f"--init_method {text}: comes in place of --master_ip and --master_port; leave them out"
        )
    elif tcp:
        texts["master_ip"], texts["master_port"] = tcp.groups()
    elif not re.fullmatch(r"file:///.*[^/]", text):
        problems.append(
            f"--init_method {text}: must be tcp://IP:PORT, or file:///FOLDER/FILE with a folder "
            "that all workers share"
        )
    return [name for name in DISTRIBUTED if name not in ("master_ip", "master_port")]


def fill_from_launcher(texts, args, env, problems, needed):
    """Take the four distributed flags from torchrun or srun if none of them was given."""
    given = [name for name in DISTRIBUTED if name in texts]
    launcher = launchers.find_launcher(env)
    if not given and launcher:
        args.launcher = launcher
        texts.update(launchers.flags_of(launcher, env))
    elif given and texts.get("world_size") != "1":
        problems += [
            f"--{name} is missing: a distributed run needs all of --master_ip, --master_port, "
            "--world_size and --local_rank"
            for name in needed
            if name not in texts
        ]


def contradictions(args):
    """Every problem with values that are valid one by one; None stands for an invalid value."""
    problems = []
    rank, size, port = args.local_rank, args.world_size, args.master_port
    if size == 1 and rank == -1:
        rank = args.local_rank = 0
    if None not in (rank, size) and not 0 <= rank < size:
        problems.append(
            f"--local_rank {rank}: must be 0 to {size - 1} with --world_size {size} "
            "(it is the global rank of this worker)"
        )
    if port is not None and port > 65535:
        problems.append(f"--master_port {port}: must be at most 65535")
    task = SCRIPTS.get(args.task)
    if task and not task.distributed and (size or 1) > 1:
        problems.append(
            f"--world_size {size}: task {task.title} runs on one worker and synchronizes nothing; "
            "leave the four distributed flags out"
        )
    if args.dropout is not None and (args.dropout > 1 or -1 < args.dropout < 0):
        problems.append(f"--dropout {args.dropout:g}: must be 0 to 1, or -1 for the checkpoint's")
    if args.max_grad_norm == 0:
        problems.append("--max_grad_norm 0: would make every gradient 0; for no clipping, give 1e9")
    if args.max_steps == 0:
        problems.append("--max_steps 0: must be at least 1, or -1 to train by epochs")
    if args.report_to == "tensorboard" and not find_spec("tensorboard"):
        problems.append(
            "--report_to tensorboard: the package tensorboard is not installed; install it with "
            f"`{Path(sys.executable).name} -m pip install tensorboard`, or leave --report_to out"
        )
    if not (args.do_train or args.do_eval):
        problems.append("neither --do_train nor --do_eval is given, so there is nothing to do")
    return problems + checkpoint_problems(args) + task_problems(args) + folder_problems(args)


def checkpoint_problems(args):
    """The problems with the flags of checkpoints."""
    problems = []
    if args.save_strategy == "steps" and args.save_steps == 0:
        problems.append(
            "--save_strategy steps: add --save_steps N, the updates between checkpoints"
        )
    if args.save_strategy == "no" and args.save_steps:
        problems.append(f"--save_steps {args.save_steps}: contradicts --save_strategy no")
    if args.resume and not args.do_train:
        problems.append("--resume: goes on training, so it needs --do_train")
    return problems


def task_problems(args):
    """The problems with --task_name."""
    if args.task_name in (None, PRETRAINING) or args.task_name in OWN_TASKS:
        return []
    try:
        glue_task = find_glue_task(args.task_name)
    except UserError as problem:
        return [str(problem)]
    if not glue_task.dev_splits:
        name = glue_task.name
        return [f"--task_name {name}: its labels are not public, so there is nothing to score"]
    return []


def folder_problems(args):
    """The problems with --data_dir and --output_dir."""
    problems = []
    if args.data_dir is not None and not os.path.isdir(args.data_dir):
        at_root = Path(args.data_dir).parent == Path("/") and "GLUE_DIR" not in os.environ
        unset = "; GLUE_DIR is not set in this shell" if at_root else ""
        task = SCRIPTS.get(args.task)
        made = (
            f"`python task8/prepare.py --output_dir {args.data_dir}` makes one of the bundled text"
            if task and task.pretrains
            else "`python download_glue_data.py --data_dir glue_data --tasks RTE` downloads RTE to "
            "glue_data/RTE"
        )
        problems.append(
            f"--data_dir {args.data_dir}: no such folder (relative to {Path.cwd()}){unset}; {made}"
        )
    if args.output_dir is None:
        return problems
    output = Path(args.output_dir)
    try:
        output.stat()
    except FileNotFoundError:
        return problems
    except OSError as error:  # too long a name, or a folder that may not be entered
        return [*problems, f"--output_dir {output}: {error.strerror}; choose a writable folder"]
    if output.exists() and not output.is_dir():
        problems.append(f"--output_dir {output}: is a file, not a folder")
    elif (output / "run.json").exists() and args.do_train and not args.overwrite_output_dir:
        if args.resume:
            return problems
        resume = any(output.glob("checkpoint-*/complete"))
        problems.append(
            f"--output_dir {output}: holds an earlier run; choose another folder, or add "
            "--overwrite_output_dir to replace it"
            + ", or --resume to go on from its checkpoint"
            * resume
        )
    return problems
