"""Proposes how a submission's scripts are called, from their own `--help`."""

import re
from collections.abc import Callable, Collection
from pathlib import Path

from common.errors import UserError
from common.tasks import Task
from grading.checks.written import walk
from grading.environment import (
    PLACEHOLDERS,
    assignments,
    variables_demanded,
    variables_read,
)
from grading.options import (
    METHOD,
    NAMES,
    NEEDED,
    NEEDED_BY_SEVERAL,
    OF_TASK,
    SWITCHES,
    Option,
    means,
    parse_help,
    positional,
)

LARGEST = 2**18  # bytes of a script
MOST_FILES = 500
PARSER = re.compile(r"\b(ArgumentParser|HfArgumentParser)\(")
CALLS = {  # task -> what its script calls
    "task2a": r"\b(gather|scatter)\(",
    "task2b": r"\ball_reduce\(",
    "task3": r"\b(DistributedDataParallel|DDP)\(",
}
Help = Callable[[str], str]  # script -> what it prints for --help


def propose(folder: Path, task: Task, help_of: Help) -> dict[str, str]:
    """A task's script and arguments, like an entry of a grading.yaml.

    `help_of(script)` is the output of `script --help`. Raises UserError where it cannot be sure:
    with what was tried, and what to write in grading.yaml.
    """
    script = find_script(folder, task)
    text = help_of(script)
    options = parse_help(text)
    if not options:
        raise unsure(task, script, "`--help` lists no options (is it a script with argparse?)")
    if positional(text):
        raise unsure(task, script, f"it has positional arguments: {' '.join(positional(text))}")
    words, used = method_of(options, task, script), {}
    for name, spellings in NAMES.items():
        option = find_option(options, spellings, [*used.values(), *words])
        alone = name in NEEDED_BY_SEVERAL and not task.distributed
        if option and (option.required or not alone):
            used[name] = option.flag
    sort_batch(options, used)
    for name, flag in used.items():
        words[flag] = f"{{{name}}}"
    for switch in SWITCHES:
        option = find_option(options, switch, [])
        if option:
            words[option.flag] = "True" if option.takes_value else ""
    environment = environment_for(folder, task, used)
    refuse_gaps(task, script, options, [*used, *(PLACEHOLDERS[n] for n in environment)], words)
    row = {"script": script, "arguments": " ".join(f"{k} {v}".strip() for k, v in words.items())}
    return {**row, "environment": assignments(environment)} if environment else row


def environment_for(folder: Path, task: Task, used: Collection[str]) -> set[str]:
    """The variables to set for a task's workers, where its options `used` do not say it all."""
    texts = [text for _, text in scripts(folder)]
    if not task.distributed:
        return variables_demanded(texts)
    return set() if set(NEEDED_BY_SEVERAL) <= set(used) else variables_read(texts)


def find_script(folder: Path, task: Task) -> str:
    """The script of a task: that of the assignment, or the only one that can be it."""
    if (folder / task.script).is_file():
        return task.script
    found = {path: text for path, text in scripts(folder) if PARSER.search(text)}
    if not found:
        raise UserError(
            f"{task.script}: the submission has no such file, and no other script with an "
            "argparse.ArgumentParser; name the script in grading.yaml"
        )
    named = [path for path in found if any(means(task.name, part) for part in parts(path))]
    others = [p for p in found if any(means(one, part) for one in OF_TASK for part in parts(p))]
    unnamed = [path for path in found if path not in others]
    calling = [p for p in unnamed if re.search(CALLS.get(task.name, r"(?!)"), found[p])]
    for group in (named, unnamed, calling):
        if len(group) == 1:
            return group[0]
    raise UserError(
        f"no one script is that of {task.name}: {', '.join(sorted(named or found))} could be; "
        f"write in grading.yaml\n{task.name}:\n  script: {sorted(named or found)[0]}"
    )


def scripts(folder: Path) -> list[tuple[str, str]]:
    """(path in the submission, text) of its Python files."""
    found = []
    for _, path in zip(range(MOST_FILES), walk(str(folder)), strict=False):
        one = Path(path)
        if one.suffix == ".py" and one.is_file() and not one.is_symlink():
            with one.open(errors="replace") as file:
                found.append((one.relative_to(folder).as_posix(), file.read(LARGEST)))
    return found


def parts(path: str) -> list[str]:
    """The names in a path that may say which task it is: folders, the file, and its words."""
    *folders, file = path.removesuffix(".py").split("/")
    words = re.split(r"run_glue|train|main|bert|glue|_(?=part|task)", file)
    return [*folders, file, *(word.strip("_") for word in words)]


def find_option(options: list[Option], spellings: str, taken: list[str]) -> Option | None:
    """The first option that has one of the spellings and is not taken."""
    free = [option for option in options if option.flag not in taken]
    return next((o for name in spellings.split() for o in free if o.is_called(name)), None)


def method_of(options: list[Option], task: Task, script: str) -> dict[str, str]:
    """The option that chooses the task in a script for several, with its value."""
    for option in options:
        chosen = [choice for choice in option.choices if means(task.name, choice)]
        if len(chosen) == 1 and METHOD.search(option.flag):
            return {option.flag: chosen[0]}
        several = sum(any(means(one, choice) for one in OF_TASK) for choice in option.choices) > 1
        if several and METHOD.search(option.flag):
            raise unsure(task, script, f"none of {', '.join(option.choices)} of {option.flag} fits")
    switches = [o for o in options if not o.takes_value and means(task.name, o.flag)]
    return {switches[0].flag: ""} if len(switches) == 1 else {}


def sort_batch(options: list[Option], used: dict[str, str]) -> None:
    """Pass the total batch to an option whose help says that it is the total, and only one."""
    option = next((option for option in options if option.flag == used.get("batch")), None)
    if option and re.search(r"\b(total|global|effective|all workers|across)\b", option.help, re.I):
        used["total_batch"] = used.pop("batch")
    if "total_batch" in used:
        used.pop("batch", None)


def refuse_gaps(
    task: Task, script: str, options: list[Option], used: Collection[str], words: dict
) -> None:
    """Raise UserError if something cannot be set, or if a required option is not understood."""
    needed = [*NEEDED, *(NEEDED_BY_SEVERAL if task.distributed else ())]
    lacking = [name for name in needed if name not in used]
    if not {"batch", "total_batch"} & set(used):
        lacking.append("batch")
    if lacking:
        names = "; ".join(f"{{{name}}}: {NAMES[name].replace(' ', ', ')}" for name in lacking)
        raise unsure(task, script, f"it has no option for {names}", words)
    unknown = [option.flag for option in options if option.required and option.flag not in words]
    if unknown:
        raise unsure(task, script, f"it needs {', '.join(unknown)}, which could be anything", words)


def unsure(task: Task, script: str, why: str, words: dict[str, str] | None = None) -> UserError:
    """The error that says what was tried, and what to write."""
    tried = " ".join(f"{k} {v}".strip() for k, v in (words or {}).items())
    return UserError(
        f"{script}: how to call it for {task.name} could not be read from its --help: {why}. "
        f"Write in grading.yaml, completed:\n{task.name}:\n  script: {script}\n"
        f"  arguments: {tried or '--data_dir {data_dir} ...'}"
    )
