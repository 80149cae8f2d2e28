"""Workers for the tests: processes and sockets as real as a user's, but quick to start.

A process that imports torch and transformers takes five seconds of a core to start, and these
tests need a hundred. So one process imports them, once, and every worker is forked from it.
"""

import contextlib
import inspect
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

from cluster.ports import free_port
from common.run import run
from common.tasks import SCRIPTS
from grading.sandbox.forks import FORKS, fork

import psutil

ROOT = Path(__file__).parents[1]
DEADLINE = 90  # seconds for anything that a test waits for, however busy the machine is
TIMEOUT = 20  # seconds: the workers' own, unless a test says otherwise
FLAGS = """--model_type bert --model_name_or_path tiny --task_name RTE --do_train --dropout 0
    --per_gpu_train_batch_size 4 --max_seq_length 64 --max_steps 6 --overwrite_output_dir
    --no_cuda"""
# A process has one fork server: grading's sandbox forks from it, too.
FORKS.set_forkserver_preload(["common.preload", "task4.run_glue", "common.cli", "pytest"])


def sample(folder, rows=64):
    """A folder with the first rows of the sample data: features are cached beside the data."""
    folder.mkdir()
    for name in ("train.tsv", "dev.tsv"):
        lines = (ROOT / "sample_data" / "RTE" / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[: rows + 1]))
    return folder


def marked(name, value):
    """The processes with a variable of that value in their environment that are not over."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            has_it = process.environ().get(name) == value
            if has_it and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@contextlib.contextmanager
def ending(process):
    """A subprocess that is over when the block is."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class Crew:
    """The workers that a test starts, with one port and one output folder; leaving it ends them."""

    def __init__(self, folder):
        self.folder, self.workers, self.port = folder, [], free_port()
        folder.mkdir(exist_ok=True)
        self.data, self.output = sample(folder / "data"), folder / "out"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self.workers:
            worker.signal(signal.SIGKILL)
        for worker in self.workers:
            worker.process.join(DEADLINE)

    def start(self, script, rank=None, size=None, flags="", env=None):
        """Start a worker: a task's script, such as "task2b", or a test's own main(args, world).

        `flags` come after FLAGS and win; without `size` the distributed flags are left out.
        """
        command = f"{FLAGS} --data_dir {self.data} --output_dir {self.output} --timeout {TIMEOUT}"
        if size:
            command += f" --master_ip 127.0.0.1 --master_port {self.port}"
            command += f" --world_size {size} --local_rank {rank}"
        output = self.folder / f"worker{len(self.workers)}"
        arguments = (script, [*command.split(), *flags.split()], env or {}, output)
        process = fork(work, *arguments)
        self.workers.append(Worker(process, rank, output))
        return self.workers[-1]

    def start_file(self, path, rank, flags):
        """Start a worker of a script, given its file, with these flags and no others."""
        output = self.folder / f"worker{len(self.workers)}"
        process = fork(work, str(path), flags.split(), {}, output)
        self.workers.append(Worker(process, rank, output))
        return self.workers[-1]

    def start_all(self, script, size, flags="", env=None):
        """Start all workers of a run; returns them by rank."""
        return [self.start(script, rank, size, flags, env) for rank in range(size)]

    def steps(self, rank):
        """How many steps a rank has done."""
        file = self.output / f"steps.rank{rank}.jsonl"
        return file.read_text().count("\n") if file.exists() else 0

    def wait_for_step(self, step):
        """Return once every worker has done that step."""
        self.wait_until(lambda: all(self.steps(worker.rank) >= step for worker in self.workers))

    def wait_until(self, condition):
        """Return once the condition holds; fail at the deadline, or if a worker ends before."""
        deadline = time.monotonic() + DEADLINE
        while not condition():
            errors = [(worker.rank, worker.errors) for worker in self.workers]
            ended = [w.rank for w in self.workers if w.process.exitcode is not None]
            assert not ended, f"ranks {ended} have ended: {errors}"
            assert time.monotonic() < deadline, f"it does not come: {errors}"
            time.sleep(0.05)


class Worker:
    """One process, in a group of its own, and the files that its output goes to."""

    def __init__(self, process, rank, output):
        self.process, self.rank, self.output = process, rank, output

    def signal(self, number):
        """Send it a signal; SIGKILL goes to its children, too."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)
        if number == signal.SIGKILL:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def end(self):
        """Wait for its end; returns its exit code, or minus the signal that ended it."""
        self.process.join(DEADLINE)
        assert self.process.exitcode is not None, f"rank {self.rank} goes on: {self.errors}"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 0)
            raise AssertionError(f"rank {self.rank} has left a child behind")
        return self.process.exitcode

    @property
    def output_lines(self):
        """What it wrote on stdout, in lines."""
        return read(self.output.with_suffix(".out")).splitlines()

    @property
    def waits_for(self):
        """What it said that it waits for."""
        return [line for line in self.lines() if line.endswith(" ...")]

    @property
    def errors(self):
        """What it wrote on stderr, less the progress bar and what it waits for, in lines."""
        return [line for line in self.lines() if "%|" not in line and not line.endswith(" ...")]

    def lines(self):
        lines = read(self.output.with_suffix(".err")).splitlines()  # at \r, too
        return [line for line in lines if line.strip()]


def read(path):
    """The text in a file, if it is there yet."""
    return path.read_text() if path.exists() else ""


def end_with_the_tests():
    """Kill this worker and its children once the process that started it is gone."""
    multiprocessing.parent_process().join()
    os.killpg(0, signal.SIGKILL)


def work(script, argv, env, output):
    """In the new process: be what `python SCRIPT ARGV` would be."""
    os.setsid()
    threading.Thread(target=end_with_the_tests, daemon=True).start()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    multiprocessing.set_start_method("fork", force=True)  # tqdm makes a lock of the default kind
    for number, suffix in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(output.with_suffix(suffix), os.O_CREAT | os.O_WRONLY, 0o600), number)
    os.environ.update(env)
    own = callable(script)
    file = inspect.getsourcefile(script) if own else script
    file = str(ROOT / SCRIPTS[script].script) if script in SCRIPTS else file
    sys.argv = [file, *argv]
    if own:
        run(script, file)
    else:
        runpy.run_path(file, run_name="__main__")
