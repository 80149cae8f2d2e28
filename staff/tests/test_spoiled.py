"""What spoils a run from within: numbers that are not finite, a full disk, another run's folder."""

import re
import signal
import socket
import subprocess

import task2b.run_glue
from staff.tests.test_faults import BRIEF, FOR_EVER, is_victim
from tests.workers import Crew

import pytest

HOST = socket.gethostname()


@pytest.fixture
def crew(tmp_path):
    with Crew(tmp_path) as crew:
        yield crew


@pytest.fixture
def small_disk(crew):
    """Mount a file system of 300 kB at the crew's output folder: less than a model takes."""
    crew.output.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(crew.output)]
    tried = subprocess.run(mount, capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no file system can be mounted here: {tried.stderr}")
    yield
    subprocess.run(["umount", "--lazy", str(crew.output)], check=True)


def spoil(args, world):
    """Task 2(b), where one worker's gradient of one tensor is infinite."""
    load = task2b.run_glue.load

    def load_and_spoil(*arguments):
        model, data = load(*arguments)
        if is_victim(world):
            model.classifier.weight.register_hook(lambda gradient: gradient / 0)
        return model, data

    task2b.run_glue.load = load_and_spoil
    task2b.run_glue.main(args, world)


def test_a_gradient_that_is_not_finite_stops_the_run_at_its_rank_and_tensor(crew):
    other, spoiled = crew.start_all(spoil, 2, BRIEF, {"VICTIM": "1"})
    assert spoiled.end() == other.end() == 1
    found = "rank 1, step 1: the gradient of classifier.weight is not finite; the learning rate was"
    (line,) = spoiled.errors
    assert line.startswith(found)
    assert "5e-05. Lower --learning_rate" in line
    (line,) = other.errors
    assert f"rank 1 failed: {found}" in line


@pytest.mark.parametrize("task", ["task1", "task3"])
def test_a_loss_that_is_not_finite_stops_the_run_at_that_step(crew, task):
    workers = crew.start_all(task, 1 if task == "task1" else 2, f"{BRIEF} --learning_rate 1e30")
    for worker in workers:
        assert worker.end() == 1
        (line,) = worker.errors
        assert re.match(rf"rank {worker.rank}, step 2: the loss is nan \(.*; the learning", line)
        assert crew.steps(worker.rank) == 1


def test_allow_nan_goes_on(crew):
    worker = crew.start("task1", flags="--learning_rate 1e30 --allow_nan")
    assert worker.end() == 0
    assert crew.steps(0) == 6


def test_a_second_run_in_one_folder_is_refused_and_a_killed_ones_lock_is_not(crew):
    first = crew.start("task1", flags=FOR_EVER)
    first.rank = 0
    crew.wait_for_step(1)
    second = crew.start("task1", flags=FOR_EVER)
    assert second.end() == 2
    (line,) = second.errors
    assert f"--output_dir {crew.output}: another run is writing there (on {HOST}, " in line
    assert re.search(rf"process {first.process.pid}, since \d{{4}}-\d\d-\d\d", line)
    first.signal(signal.SIGKILL)
    first.end()
    third = crew.start("task1")
    assert third.end() == 0


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("no", "the model was not saved: rank 0 failed: "),
        ("epoch", " in barrier): rank 0 failed: "),
    ],
)
@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_takes_one_line_and_no_rank_succeeds(crew, strategy, said):
    first, second = crew.start_all("task2b", 2, f"{BRIEF} --save_strategy {strategy}")
    assert first.end() == second.end() == 1
    (line,) = first.errors
    assert re.match(rf"{re.escape(str(crew.output))}.*: the disk is full \(\d\.\d MB free of", line)
    (line,) = second.errors
    assert said in line
    assert "the disk is full" in line
    assert not list(crew.output.glob("*.part"))
    assert '"end": null' in (crew.output / "run.json").read_text()
