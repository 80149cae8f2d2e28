"""A run of three workers of a task, on nodes of the lab where there is one."""

import contextlib
import json
import os
import signal
import tempfile
import time
from pathlib import Path

from cluster.ports import free_port
from grading.sandbox.forks import fork
from tests.campaign import machines
from tests.campaign.faults import SIZE, TIMEOUT_SECONDS, Case, Place, be_worker
from tests.workers import DEADLINE, FLAGS, Worker, sample

TRAIN = f"""{FLAGS} --max_steps -1 --num_train_epochs 2 --dropout 0.1 --do_eval --save_steps 2
    --timeout {TIMEOUT_SECONDS}"""


class Run:
    """The workers of a run and its folder; leaving it ends them."""

    def __init__(self, folder: Path, first_node: int, small_disk: bool = False) -> None:
        folder.mkdir()
        self.data = sample(folder / "data")
        self.output = folder / "out"
        self.folder = folder
        self.first_node = first_node
        self.small_disk = small_disk
        self.workers: list[Worker] = []
        if small_disk:
            self.output.mkdir()
            machines.mount_small_disk(self.output)

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self.join_links()
        if self.small_disk:
            machines.unmount(self.output)

    def start(self, task: str, case: Case | None = None, flags: str = "") -> None:
        """Start all workers, in place of those before."""
        port = free_port()
        self.workers = []
        for rank in range(SIZE):
            place = Place(self.first_node + rank, self.output, machines.INSIDE)
            where = f"--master_ip {machines.address(self.first_node)} --master_port {port}"
            where += f" --world_size {SIZE} --local_rank {rank}"
            files = f"--data_dir {self.data} --output_dir {self.output}"
            argv = f"{TRAIN} {where} {files} {flags}".split()
            text = self.folder / f"rank{rank}{'-resumed' * (not case)}"
            process = fork(be_worker, case, rank, place, argv if case else [task, *argv], text)
            self.workers.append(Worker(process, rank, text))

    def end(self) -> None:
        """Kill what still runs."""
        for worker in self.workers:
            worker.signal(signal.SIGKILL)
            worker.process.join(DEADLINE)

    def join_links(self) -> None:
        """Take the links of all nodes up again."""
        if machines.INSIDE:
            for rank in range(SIZE):
                machines.join(self.first_node + rank)

    def wait(self, ranks: list[int], seconds: float) -> list[int]:
        """Wait for some workers; returns those that go on at the deadline."""
        deadline = time.monotonic() + seconds
        for rank in ranks:
            self.workers[rank].process.join(max(0, deadline - time.monotonic()))
        return [rank for rank in ranks if self.workers[rank].process.exitcode is None]

    def wait_for(self, mark: Path) -> int:
        """Wait for the fault; returns the rank that it came to, -1 if it did not come."""
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                return int(os.readlink(mark))
            if all(worker.process.exitcode is not None for worker in self.workers):
                return -1
            time.sleep(0.01)
        return -1

    def results(self) -> dict:
        """What the run has left that a resumed run must leave, too."""
        left = {}
        for file in self.output.glob("steps.rank*.jsonl"):
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            left[file.name] = [{**line, "seconds": None} for line in lines]
        for name in ("model.safetensors", "eval_results.txt"):
            left[name] = (self.output / name).read_bytes()
        return left


def run_whole(task: str, first_node: int) -> dict:
    """The results of a run that nothing happens to."""
    with tempfile.TemporaryDirectory() as folder, Run(Path(folder, "run"), first_node) as run:
        run.start(task)
        assert not run.wait(list(range(SIZE)), DEADLINE), "a run without a fault hangs"
        assert not any(w.process.exitcode for w in run.workers), run.workers[0].errors
        return run.results()
