"""The calls of a submission's tasks: from a mapping, or proposed from the scripts' own --help."""

from pathlib import Path

from cluster.ports import free_port
from common.tasks import Task
from grading.automatic import propose, scripts
from grading.environment import PLACEHOLDERS, variables_read
from grading.hand_in.archive import copy
from grading.mapping import Entry, Mapping
from grading.plan import Limits, Run
from grading.sandbox.sandbox import run_workers
from grading.sandbox.session import Session
from grading.sandbox.temporary import inner_folder

SYSTEM = ("", "usr", "etc", "opt", "var", "lib", "bin", "home", "root")
HELP_SECONDS = 30.0
LONGEST = 2**17  # characters of help that are read


class Calls:
    """How the tasks of the submission in the folder `path` are called.

    `used` is task -> in words, how it was called and why, where not as in the assignment.
    """

    def __init__(self, path: Path, mapping: Mapping, session: Session):
        self.path = path
        self.mapping = mapping
        self.session = session
        self.used = {}
        self.helps = {}  # script -> what it prints for --help

    def entry(self, task: Task) -> Entry:
        """A task's row; UserError where none is given and its script's --help leaves it open."""
        entry = self.mapping.entry(task.name)
        if not entry.facts and self.mapping.auto:
            proposed = propose(self.path, task, self.help_of)
            entry = Entry(proposed, "proposed from the script's --help")
        if entry.facts:
            script, arguments = (entry.facts.get(key, "") for key in ("script", "arguments"))
            before = entry.facts.get("environment", "")
            words = (before, script or task.script, arguments or "(the assignment's arguments)")
            call = " ".join(filter(None, words))
            self.used[task.name] = f"{call} ({entry.source})"
        return entry

    def help_of(self, script: str) -> str:
        """What a script prints for --help, run in the sandbox; "" if nothing in time."""
        if script not in self.helps:
            self.helps[script] = self.run_help(script)
        return self.helps[script]

    def run_help(self, script: str) -> str:
        """Run it once, alone, with the variables that such scripts may read before anything."""
        with inner_folder(self.session.folder) as top:
            folder, observed = top / "submission", top / "observed"
            copy(self.path, folder)
            limits = Limits(seconds=HELP_SECONDS)
            names = variables_read(text for _, text in scripts(folder))
            alone = {"rank": 0, "world_size": 1, "master_ip": "127.0.0.1"}
            alone["master_port"] = free_port()
            run_workers(
                Run(
                    folder,
                    [[script, "--help"]],
                    observed,
                    hidden=neighbors(self.path),
                    environment=({name: str(alone[PLACEHOLDERS[name]]) for name in names},),
                    limits=limits,
                )
            )
            with (observed / "0.out").open(errors="replace") as file:
                return file.read(LONGEST)


def neighbors(path: Path) -> tuple[Path, ...]:
    """The folder that holds the other submissions, unless it is one of the system's."""
    parent = path.resolve().parent
    return () if len(parent.parts) <= 2 and parent.name in SYSTEM else (parent,)
