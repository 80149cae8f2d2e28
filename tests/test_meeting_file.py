"""--init_method: workers that meet by tcp:// or by a file; what is refused, and in seconds."""

import json
import socket
import time

from tests.workers import FLAGS, TIMEOUT, Crew

import pytest


@pytest.fixture
def crew(tmp_path):
    with Crew(tmp_path / "crew") as crew:
        (tmp_path / "shared").mkdir()
        crew.file = tmp_path / "shared" / "run"
        yield crew


def start(crew, rank, size=2, method=None, task="task2b", output="", steps=3):
    """Start a worker that meets the others by the crew's file, or by another method."""
    flags = f"--init_method {method or f'file://{crew.file}'} --world_size {size} "
    flags += f"--local_rank {rank} --max_steps {steps} --save_strategy no "
    return crew.start(task, rank, flags=flags + (output and f"--output_dir {crew.folder / output}"))


def stale(crew):
    """Leave a file of a run that was killed: nothing listens at its port any more."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    facts = {"address": "127.0.0.1", "port": port, "host": "node0", "pid": 7, "since": "1 May"}
    crew.file.write_text(json.dumps(facts))


def refusal(worker):
    """The one line of a worker that is refused in less than its timeout."""
    begun = time.monotonic()
    assert worker.end() == 2, worker.errors
    assert time.monotonic() - begun < TIMEOUT
    (line,) = worker.errors
    return line


def test_workers_meet_by_a_file_that_is_gone_afterwards(crew):
    workers = [start(crew, rank) for rank in (1, 0)]  # the other rank waits for rank 0's file
    assert [worker.end() for worker in workers] == [0, 0], [w.errors for w in workers]
    assert list(crew.file.parent.iterdir()) == []
    assert crew.steps(0) == crew.steps(1) == 3


@pytest.mark.slow
def test_workers_meet_by_tcp(crew):
    method = f"tcp://127.0.0.1:{crew.port}"
    workers = [start(crew, rank, method=method, task="task3") for rank in (0, 1)]
    assert [worker.end() for worker in workers] == [0, 0], [w.errors for w in workers]


def test_a_file_that_a_killed_run_has_left_is_refused_by_every_rank(crew):
    stale(crew)
    for worker in [start(crew, rank) for rank in (0, 1)]:
        line = refusal(worker)
        assert f"{crew.file} is left of a run that was killed (node0, process 7, since 1" in line
        assert "delete it, and start all ranks again" in line
    assert crew.file.exists()


def test_a_folder_that_is_not_there_is_named(crew):
    for worker in [start(crew, rank, method="file:///no/folder/run") for rank in (0, 1)]:
        assert "there is no folder /no/folder on this machine" in refusal(worker)


def test_a_file_of_another_kind_is_left_alone(crew):
    crew.file.write_text("my notes")
    assert "was not written by a run; choose another file" in refusal(start(crew, 0))
    assert crew.file.read_text() == "my notes"


@pytest.mark.slow
def test_a_second_run_and_a_second_rank_0_are_refused_and_harm_nobody(crew):
    workers = [start(crew, rank, steps=60) for rank in (0, 1)]
    crew.wait_for_step(2)
    line = refusal(start(crew, 0, output="other"))
    assert f"{crew.file} is the file of another run, or of another rank 0" in line
    line = refusal(start(crew, 1, output="other"))
    assert "rank 1 is refused: a run of 2 workers has been going on there" in line
    assert [worker.end() for worker in workers] == [0, 0], [w.errors for w in workers]


def test_a_rank_that_comes_twice_is_named(crew):
    workers = [start(crew, rank, size=3, output=f"o{at}") for at, rank in enumerate((0, 1, 1))]
    for worker in workers:
        assert worker.end() == 2
        assert any("rank 1 was started twice" in line for line in worker.errors)
    assert not crew.file.exists()


def test_the_flag_comes_in_place_of_the_address(crew):
    assert "--max_steps" in FLAGS
    worker = crew.start("task2b", 0, 2, f"--init_method file://{crew.file}")
    assert "comes in place of --master_ip and --master_port; leave them out" in refusal(worker)
    line = refusal(start(crew, 0, method="shared/run"))
    assert "--init_method shared/run: must be tcp://IP:PORT, or file:///FOLDER/FILE" in line
