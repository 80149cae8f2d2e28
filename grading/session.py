"""What all submissions that are graded together share, and processes where torch is loaded."""

import importlib
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from cluster.launch import free_port
from grading import material
from grading.sandbox import FORKS, Run, run

FLAT = Path(__file__).with_name("flat_all_reduce.py")


class Session:
    """What all submissions share: the number of workers, and a folder with model and data."""

    def __init__(self):
        self.workers = material.worker_count()
        self.folder = Path(tempfile.mkdtemp(prefix="grading-"))
        self.folder.chmod(0o711)
        self.shown = self.folder / "material"
        self.shown.mkdir()
        self.labels = in_process("grading.material", "build", self.shown)
        self.flat = {}  # elements -> seconds

    def flat_all_reduce(self, elements):
        """The median seconds of one all_reduce of that many float32, between as many workers."""
        if elements not in self.flat:
            with tempfile.TemporaryDirectory(dir=self.folder) as top:
                folder, port = Path(top) / "timed", free_port()
                Path(top).chmod(0o711)
                folder.mkdir()
                shutil.copy(FLAT, folder)
                ranks = range(self.workers)
                place = (str(port), str(self.workers), str(elements))
                commands = [[FLAT.name, str(rank), *place] for rank in ranks]
                ended = run(Run(folder, commands, Path(top) / "observed"))
                told = (Path(top) / "observed" / "0.out").read_text()
            if any(ended.codes):
                raise RuntimeError(f"the timing of all_reduce ended with {ended.codes}")
            self.flat[elements] = float(told)
        return self.flat[elements]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)


def in_process(module, function, *arguments):
    """What a module's function returns in a process where torch is loaded; here it is not."""
    ours, theirs = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=answer, args=(theirs, module, function, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        value, error = ours.recv()
    except EOFError:
        value, error = None, f"it ended without a word (exit code {process.exitcode})"
    process.join()
    if error:
        raise RuntimeError(f"{module}.{function}: {error}")
    return value


def answer(talk, module, function, *arguments):
    """Send what the function returns, or what it raises."""
    try:
        talk.send((getattr(importlib.import_module(module), function)(*arguments), ""))
    except Exception as error:
        with suppress(OSError):
            talk.send((None, f"{type(error).__name__}: {error}"))
