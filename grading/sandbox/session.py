"""What all submissions that are graded together share, and processes where torch is loaded."""

import shutil
import tempfile
from pathlib import Path

from cluster.ports import free_port
from grading import inputs
from grading.plan import Run
from grading.sandbox.remote import in_process
from grading.sandbox.sandbox import run

FLAT = Path(__file__).with_name("flat_all_reduce.py")


class Session:
    """What all submissions share: the number of workers, and a folder with model and data."""

    def __init__(self):
        self.workers = inputs.worker_count()
        self.folder = Path(tempfile.mkdtemp(prefix="grading-"))
        self.folder.chmod(0o711)
        self.shown = self.folder / "material"
        self.shown.mkdir()
        self.labels = in_process("grading.inputs", "build", self.shown)
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
