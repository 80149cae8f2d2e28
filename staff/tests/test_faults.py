"""Whatever happens to one worker, the others end and say in one line whom they lost, and where.

A fault comes when all workers have done a step, as their steps files show, never after a sleep.
"""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import task2b.run_glue
import task3.run_glue
from common.record.record import Record
from common.tasks import SCRIPTS
from tests.workers import DEADLINE, FLAGS, ROOT, Crew

import psutil
import pytest
import torch
import torch.distributed as dist

BRIEF = "--timeout 12"  # seconds; collectives get 6 of them, the rest is for explaining
FOR_EVER = "--max_steps 1000000 " + BRIEF
KILLED_OR_SUSPENDED = [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]


@pytest.fixture
def crew(tmp_path):
    with Crew(tmp_path) as crew:
        yield crew


@pytest.fixture
def crews(tmp_path):
    """Two crews, to run at once what takes a while."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Crew(tmp_path / name)) for name in ("0", "1")]


def start(crews, script):
    """Start two runs; rank 0 is the victim of the one, rank 1 of the other."""
    return [crew.start_all(script, 3, BRIEF, {"VICTIM": str(v)}) for v, crew in enumerate(crews)]


def last_words(survivors):
    """Each survivor's one line, after it has ended as it must: rank -> line."""
    words = {}
    for worker in survivors:
        assert worker.end() == 1
        (line,) = worker.errors
        assert line.startswith(f"rank {worker.rank} stops ")
        assert not re.search(r"Traceback|frame #|\.cpp|\.cc:|Exception", line)
        words[worker.rank] = line
    return words


def steps(args, world):
    """Count steps of a collective each, and write a line for each as a task does."""
    folder = Path(args.output_dir)
    folder.mkdir(exist_ok=True)
    with (folder / f"steps.rank{world.rank}.jsonl").open("w") as file:
        for step in itertools.count(1):
            dist.all_reduce(torch.ones(1000))
            print(step, file=file, flush=True)
            yield step


def is_victim(world):
    """Whether it is this worker that something happens to."""
    return os.environ["VICTIM"] == str(world.rank)


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize(
    ("task", "places"),
    [
        ("task2a", ["gather", "scatter"]),
        ("task2b", ["all_reduce"]),
        (
            "overlap",
            ["wait_all", "all_reduce"],
        ),  # of a bucket that the backward pass has not hidden
        ("task3", ["the backward pass", "the forward pass"]),  # where rank 0 sends the buffers
    ],
)
def test_a_killed_worker_is_named(crew, task, places, victim):
    survivors = crew.start_all(task, 3, FOR_EVER)
    crew.wait_for_step(3)
    killed = survivors.pop(victim)
    killed.signal(signal.SIGKILL)
    assert killed.end() == -signal.SIGKILL
    words = last_words(survivors)
    for line in words.values():
        assert f"rank {victim} {'disappeared' if victim else 'is gone'}" in line
        assert "Check that rank's own output" in line
    # One of them may notice by the other's end, when it is elsewhere. When rank 0 ends, all of them
    # may notice between two steps, where they ask it whether the run is to end.
    at = [f"stops in {place} ({SCRIPTS[task].script}:" for place in places]
    at += ["stops in a request to rank 0 (record/record.py:"] if victim == 0 else []
    assert any(place in str(words) for place in at), words


def test_a_worker_killed_under_the_launcher_is_named_and_nothing_is_left(crew):
    command = [sys.executable, "-m", "cluster.launch", "--workers", "3", "task2b/run_glue.py"]
    command += f"{FLAGS} {FOR_EVER} --timeout 60 --data_dir {crew.data}".split()
    command += ["--output_dir", str(crew.output)]
    with open(crew.folder / "text", "w+") as text:
        launcher = psutil.Popen(command, cwd=ROOT, stdout=text, stderr=subprocess.STDOUT)
        try:
            crew.wait_until(lambda: launcher.poll() is not None or min(map(crew.steps, [0, 1, 2])))
            processes = launcher.children(recursive=True)
            (killed,) = [p for p in processes if p.name() == "rank 2"]
            killed.kill()
            assert launcher.wait(DEADLINE) == 128 + signal.SIGKILL
            assert not psutil.wait_procs(processes, timeout=10)[1]
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in [*launcher.children(recursive=True), launcher]:
                    process.kill()
        text.seek(0)
        lines = text.read().splitlines()
    lost = (
        r"stops in all_reduce \(task2b/run_glue.py:\d+ in average_gradients\): rank 2 disappeared"
    )
    assert [line for line in lines if re.match(rf"rank 0 {lost}", line)]
    assert [line for line in lines if re.match(rf"\[rank 1\] rank 1 {lost}", line)]
    assert re.search(r"rank 2 failed first, after [\d.]+ s: SIGKILL", "\n".join(lines))
    assert not re.search(r"Traceback|frame #", "\n".join(lines))


def test_a_worker_killed_while_joining_is_named(crew):
    survivor, killed = (crew.start(train, rank, 3, BRIEF) for rank in (0, 1))
    crew.wait_until(lambda: survivor.waits_for and killed.waits_for)
    killed.signal(signal.SIGKILL)
    assert killed.end() == -signal.SIGKILL
    for worker in (survivor, crew.start(train, 2, 3, BRIEF)):
        assert worker.end() == 2
        text = "\n".join(worker.errors)
        assert re.search(r"^- rank [02] .* to rank 1 .*: Connection refused$", text, re.MULTILINE)
        assert "check that that rank is still running" in text


def test_a_rank_0_that_is_suspended_while_others_join_is_named(crew):
    suspended, survivor = (crew.start(train, rank, 3, "--timeout 8") for rank in (0, 1))
    crew.wait_until(lambda: suspended.waits_for and survivor.waits_for)
    suspended.signal(signal.SIGSTOP)
    assert survivor.end() != 0
    (line,) = survivor.errors
    assert line.startswith("rank 1 ")
    assert ": rank 0 " in line


def train(args, world):
    """In each step a collective; this goes on for ever."""
    for _ in steps(args, world):
        pass


def test_a_suspended_worker_is_named(crews):
    runs = start(crews, train)
    for victim, survivors in enumerate(runs):
        crews[victim].wait_for_step(1)
        survivors.pop(victim).signal(signal.SIGSTOP)
    for victim, survivors in enumerate(runs):
        for line in last_words(survivors).values():
            assert "stops in all_reduce (tests/test_faults.py:" in line
            assert f": rank {victim} " in line


def sleep(args, world):
    """One worker's main thread hangs, while its other threads go on."""
    for step in steps(args, world):
        if is_victim(world) and step == 2:
            time.sleep(2 * DEADLINE)


def sleep_in_task3(args, world):
    """Task 3, where one worker hangs after the second step."""
    end_step = Record.end_step

    def end_step_and_sleep(record, *args):
        end_step(record, *args)
        if is_victim(world) and record.schedule.step == 2:
            time.sleep(2 * DEADLINE)

    Record.end_step = end_step_and_sleep
    task3.run_glue.main(args, world)


def test_a_worker_that_hangs_is_named_with_the_line_it_hangs_in(crews):
    victim = {"VICTIM": "2"}
    here = (
        r"all_reduce \(tests/test_faults.py:",
        r"the (for|back)ward pass \(task3/run_glue.py:",
    )
    there = r"tests/test_faults.py:\d+ in \w*sleep"
    runs = [
        crews[0].start_all(sleep, 3, BRIEF, victim),
        crews[1].start_all(sleep_in_task3, 3, BRIEF, victim),
    ]
    for (*survivors, hanging), collective in zip(runs, here, strict=True):
        for line in last_words(survivors).values():
            assert re.search(
                f"stops in {collective}.*: rank 2 never reached this collective; it was at {there}",
                line,
            )
        (line,) = last_words([hanging]).values()
        assert re.search(f"stops at {there}: the other ranks waited for this one", line)


def fail(args, world):
    for step in steps(args, world):
        if is_victim(world) and step == 2:
            raise ZeroDivisionError("of 0 examples")


def test_an_exception_is_shown_there_and_named_by_the_others(crews):
    for victim, survivors in enumerate(start(crews, fail)):
        failed = survivors.pop(victim)
        for line in last_words(survivors).values():
            assert "stops in all_reduce (tests/test_faults.py:" in line
            assert line.endswith(f": rank {victim} failed: ZeroDivisionError: of 0 examples")
        assert failed.end() == 1
        assert failed.errors[0] == "Traceback (most recent call last):"
        assert failed.errors[-1] == "ZeroDivisionError: of 0 examples"


def fail_all(args, world):
    next(steps(args, world))
    raise ZeroDivisionError(f"at rank {world.rank}")


def test_an_exception_in_all_workers_is_shown_by_each(crew):
    for worker in crew.start_all(fail_all, 3, BRIEF):
        assert worker.end() == 1
        assert worker.errors[-1] == f"ZeroDivisionError: at rank {worker.rank}"


def go_apart(args, world):
    """One worker is in another collective than the others."""
    next(steps(args, world))
    if is_victim(world):
        dist.gather(torch.ones(1000), dst=0)
    dist.all_reduce(torch.ones(1000))


def test_workers_in_different_collectives_say_who_waits_where(crew):
    words = last_words(crew.start_all(go_apart, 3, BRIEF, {"VICTIM": "1"}))
    assert len(words) == 3
    here = r"\(tests/test_faults.py:\d+ in go_apart\)"
    everywhere = rf"rank 0 in all_reduce {here}, rank 1 in gather {here}, rank 2 in all_reduce"
    for line in words.values():
        assert re.search("different collectives: " + everywhere, line)


def finish_early(args, world):
    next(steps(args, world))
    if not is_victim(world):
        dist.all_reduce(torch.ones(1000))


def test_a_worker_that_has_finished_before_the_others_is_named(crews):
    for victim, survivors in enumerate(start(crews, finish_early)):
        del survivors[victim]
        for line in last_words(survivors).values():
            assert "stops in all_reduce (tests/test_faults.py:" in line
            assert f": rank {victim} has already finished" in line


def test_ctrl_c_exits_130_and_is_named_by_the_others(crews):
    runs = start(crews, train)
    for victim, survivors in enumerate(runs):
        crews[victim].wait_for_step(1)
        survivors[victim].signal(signal.SIGINT)
    for victim, survivors in enumerate(runs):
        interrupted = survivors.pop(victim)
        assert interrupted.end() == 130
        assert interrupted.errors == ["interrupted (Ctrl-C)"]
        for line in last_words(survivors).values():
            assert "stops in all_reduce (tests/test_faults.py:" in line
            assert line.endswith(f": rank {victim} failed: interrupted (Ctrl-C)")


def test_ctrl_c_in_the_terminal_of_all_workers_takes_a_line_each(crew):
    workers = crew.start_all(train, 3, BRIEF)
    crew.wait_for_step(1)
    for worker in workers:
        worker.signal(signal.SIGINT)
    for worker in workers:
        # One that is in a collective, where Python hears no signal, may notice the others first.
        assert worker.end() in (130, 1)
        assert 1 <= len(worker.errors) <= 2
        assert all("interrupted (Ctrl-C)" in line for line in worker.errors)


def reach(place, args, world):
    """Train as task 2(b), but stay for ever where `place` of the record is called at the victim."""
    original = getattr(Record, place)

    def reached(record, *rest):
        if is_victim(world):
            Path(args.output_dir, "reached").touch()
            while True:  # with its heartbeats, until it is killed
                time.sleep(0.1)
        return original(record, *rest)

    setattr(Record, place, reached)
    task2b.run_glue.main(args, world)


def finish_never(args, world):
    reach("finish", args, world)


@pytest.mark.parametrize("number", KILLED_OR_SUSPENDED)
def test_a_rank_0_lost_in_the_save_leaves_no_success(crew, number):
    first, *others = crew.start_all(finish_never, 3, BRIEF, {"VICTIM": "0"})
    crew.wait_until((crew.output / "reached").exists)
    first.signal(number)
    for line in last_words(others).values():
        assert "stops in the wait for all ranks to finish (" in line
        assert "the model was not saved: rank 0 " in line


@pytest.mark.slow
def test_a_rank_that_never_finishes_is_named_and_where_it_is(crew):
    *others, hanging = crew.start_all(finish_never, 3, BRIEF, {"VICTIM": "2"})
    there = r"tests/test_faults.py:\d+ in reached"
    for line in last_words(others).values():
        assert re.search(f": rank 2 never finished; it was at {there}", line)
        assert "not saved" not in line
    assert re.search(f"stops at {there}: ", *last_words([hanging]).values())


def load_never(args, world):
    if is_victim(world):
        Path(args.output_dir).mkdir(exist_ok=True)
        Path(args.output_dir, "reached").touch()
        time.sleep(2 * DEADLINE)
    task2b.run_glue.main(args, world)


EARLY = r"stops in (the exchange with all ranks \(common/load.py:|init_process_group )"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_lost_before_the_first_collective_is_named(crew, victim, number):
    workers = crew.start_all(load_never, 3, BRIEF, {"VICTIM": str(victim)})
    crew.wait_until((crew.output / "reached").exists)
    workers.pop(victim).signal(number)
    for line in last_words(workers).values():
        assert re.search(EARLY, line)
        assert f": rank {victim} " in line
