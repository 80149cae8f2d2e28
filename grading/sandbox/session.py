"""What all submissions that are graded together share: the inputs, and a reference time."""

import hashlib
import pickle
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

from cluster.ports import free_port
from grading import inputs
from grading.plan import Run
from grading.reference import REFERENCE
from grading.sandbox.remote import in_process
from grading.sandbox.sandbox import run_workers
from grading.sandbox.temporary import PrivateFolder, inner_folder, remove_abandoned

MOST_REFERENCES = 32  # that are kept: at most half a megabyte each
FLAT = Path(__file__).with_name("flat_all_reduce.py")


class Session:
    """The number of workers, a folder with model and data, and the rows that there are.

    It is in `folder`, whose owner removes it, or else in a new one that goes with the session.
    """

    def __init__(self, folder: Path | None = None):
        self.workers = inputs.worker_count()
        self.private = None
        if folder is None:
            remove_abandoned()
            self.private = PrivateFolder()
            folder = self.private.path
        self.folder = folder
        self.folder.chmod(0o711)
        self.inputs = self.folder / "inputs"
        self.inputs.mkdir()
        in_process("grading.inputs", "build", self.inputs)
        self.known = in_process("grading.known_rows", "read", self.inputs)
        self.corpus = ""
        self.flat_seconds = {}  # elements -> seconds
        self.references = OrderedDict()  # digest of what was asked for -> what was returned

    def reference(self, model: str, *arguments: Any) -> dict:
        """What staff.reference.replay returns for a model of the inputs and these arguments.

        Kept, since tasks and submissions that read the same rows have the same one; not to be
        changed.
        """
        key = hashlib.sha256(pickle.dumps((model, arguments))).digest()
        found = self.references.pop(key, None)
        if found is None:
            found = in_process(REFERENCE, "replay", self.inputs / model, *arguments)
        self.references[key] = found  # as the newest
        if len(self.references) > MOST_REFERENCES:
            self.references.popitem(last=False)
        return found

    def pretraining(self) -> tuple[Path, str]:
        """The folder with task 8's inputs, and its corpus's text, made when first asked for."""
        folder = self.inputs / "pretraining"
        if not self.corpus:
            self.corpus = in_process("grading.pretraining_inputs", "build", folder)
        return folder, self.corpus

    def flat_all_reduce(self, elements: int) -> float:
        """The median seconds of one all_reduce of that many float32, between as many workers."""
        if elements not in self.flat_seconds:
            self.flat_seconds[elements] = self.time_flat_all_reduce(elements)
        return self.flat_seconds[elements]

    def time_flat_all_reduce(self, elements: int) -> float:
        """Measure it; RuntimeError if that fails."""
        with inner_folder(self.folder) as top:
            folder, observed = top / "timed", top / "observed"
            folder.mkdir()
            shutil.copy(FLAT, folder)
            shared = [str(free_port()), str(self.workers), str(elements)]
            commands = [[FLAT.name, str(rank), *shared] for rank in range(self.workers)]
            ended = run_workers(Run(folder, commands, observed))
            printed = (observed / "0.out").read_text()
        if any(ended.codes):
            raise RuntimeError(f"the timing of all_reduce ended with exit codes {ended.codes}")
        return float(printed)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.private:
            self.private.remove()
