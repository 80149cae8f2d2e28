"""How workers find each other: every way to start a run, right or wrong, ends as it should."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

from cluster.ports import free_port
from common.errors import UserError
from common.models.tiny import tiny_model, tiny_tokenizer
from common.workers import world as workers
from common.workers.rendezvous import differences
from tests.workers import DEADLINE, FLAGS, ROOT, Crew, sample

import psutil
import pytest
import tokenizers
import torch
import torch.distributed as dist
import transformers

HOST = socket.gethostname()


@pytest.fixture
def crew(tmp_path):
    with Crew(tmp_path) as crew:
        yield crew


def meet(args, world):
    """Say who one is, and use the process group once."""
    one = torch.ones(1)
    dist.all_reduce(one)
    ranks = [member["rank"] for member in world.members]
    print(json.dumps([world.rank, world.size, world.backend, ranks, one.item(), args.launcher]))


def ends(worker, code=2):
    """A worker's errors as text, after it has ended with that code and no stack trace."""
    assert worker.end() == code, worker.errors
    text = "\n".join(worker.errors)
    assert "Traceback" not in text
    assert "frame #" not in text
    return text


def assert_met(crew, size, launcher):
    for rank, worker in enumerate(crew.workers):
        assert ends(worker, 0) == ""
        expected = [rank, size, "gloo", list(range(size)), size, launcher]
        assert json.loads(worker.output_lines[-1]) == expected


def test_workers_in_any_order_meet(crew):
    third = crew.start(meet, 2, 3)
    crew.start(meet, 0, 3)
    crew.start(meet, 1, 3)
    crew.workers = [*crew.workers[1:], third]
    assert_met(crew, 3, "the command line")


@pytest.mark.parametrize("master", ["localhost", "::1"])
def test_host_names_and_ipv6_addresses_do_for_the_master(crew, master):
    try:
        socket.create_server((master, 0), family=socket.getaddrinfo(master, 0)[0][0]).close()
    except OSError as error:
        pytest.skip(f"this machine has no {master}: {error}")
    for rank in (0, 1):
        crew.start(meet, rank, 2, f"--master_ip {master}")
    assert_met(crew, 2, "the command line")


def test_workers_of_srun_find_their_places(crew):
    port = next(port for port in iter(free_port, None) if port < 30000)
    for rank in (0, 1):
        slurm = {"PROCID": rank, "NTASKS": 2, "LOCALID": rank, "JOB_ID": 70000 + port - 20000}
        slurm["STEP_NODELIST"] = "localhost,elsewhere[07-10,12]"
        crew.start(meet, env={f"SLURM_{name}": str(value) for name, value in slurm.items()})
    assert_met(crew, 2, "srun")


def test_torchrun_needs_no_distributed_flags(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(free_port()), "task2b/run_glue.py", *FLAGS.split()]
    data, output = sample(tmp_path / "data"), tmp_path / "out"
    command += f"--do_eval --data_dir {data} --output_dir {output} --timeout 60".split()
    run = subprocess.Popen(
        command, cwd=ROOT, text=True, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        errors = run.communicate(timeout=DEADLINE)[1]
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGTERM)  # its workers have groups of their own
            run.communicate(timeout=DEADLINE)
    assert run.returncode == 0, errors
    facts = json.loads((output / "run.json").read_text())
    assert (facts["world_size"], facts["arguments"]["launcher"]) == (2, "torchrun")
    assert facts["end"]
    assert (output / "steps.rank1.jsonl").read_text().count("\n") == 6


def test_every_task_runs_with_one_worker(crew):
    tasks = ["task2a", "task2b", "task3", "task4"]
    for task in tasks:
        crew.start(task, flags=f"--world_size 1 --output_dir {crew.folder / task}")
    for task, worker in zip(tasks, crew.workers, strict=True):
        assert ends(worker, 0) == ""
        assert (crew.folder / task / "steps.rank0.jsonl").read_text().count("\n") == 6
        assert json.loads((crew.folder / task / "run.json").read_text())["end"]


def test_a_missing_rank_is_named_by_all(crew):
    first, second = (crew.start(meet, rank, 3, "--timeout 8") for rank in (0, 1))
    assert first.end() != 0
    assert second.end() != 0
    for worker in (first, second):
        text = "\n".join(worker.errors)
        assert "timed out waiting for rank 2 (of 3 workers). Start every rank" in text
        assert "--timeout SECONDS" in text
        assert "Traceback" not in text
    assert first.waits_for == ["rank 0 is waiting for rank 2 of 3 ..."]


def test_a_wrong_port_is_reported_on_both_sides(crew):
    first = crew.start(meet, 0, 2, "--timeout 8")
    second = crew.start(meet, 1, 2, f"--timeout 3 --master_port {(port := free_port())}")
    text = ends(second)
    assert f"rank 1 timed out after 3 s connecting to rank 0 at 127.0.0.1:{port} (" in text
    assert "itself): Connection refused" in text
    assert "with the same --master_ip and --master_port" in text
    assert "rank 0 timed out waiting for rank 1 (of 2 workers)" in ends(first)


def test_a_port_where_another_program_listens_is_reported_to_rank_0(crew):
    with socket.create_server(("", crew.port)):
        text = ends(crew.start(meet, 0, 2))
    assert f"rank 0 cannot listen at 127.0.0.1:{crew.port}: Address already in use" in text
    assert "--master_port a port that no other run uses" in text


def test_a_port_where_another_program_listens_is_reported_to_the_others(crew):
    with socket.create_server(("", crew.port)):
        worker = crew.start(meet, 1, 2, "--timeout 3")
        assert worker.end() in (1, 2)
    (line,) = worker.errors
    assert "rank 1" in line
    assert f"127.0.0.1:{crew.port}" in line
    assert "--master_port" in line


def test_an_address_of_another_machine_is_reported_to_rank_0(crew):
    text = ends(crew.start(meet, 0, 2, "--master_ip 203.0.113.7"))  # reserved: nobody's
    assert f"rank 0 cannot listen at 203.0.113.7:{crew.port}: " in text
    assert "must be an address of rank 0's machine" in text
    assert "127.0.0.1" in text  # among those that it has


@pytest.mark.parametrize("rank", [0, 1])
def test_an_unknown_host_name_is_reported(crew, rank):
    text = ends(crew.start(meet, rank, 2, "--master_ip no-such-host.invalid"))
    assert "--master_ip no-such-host.invalid: unknown host" in text
    assert text.endswith("give its IP address")


def test_the_same_rank_twice_is_reported_to_all(crew):
    for rank in (0, 1, 1):
        crew.start(meet, rank, 3)
    pids = [worker.process.pid for worker in crew.workers[1:]]
    for worker in crew.workers:
        text = ends(worker)
        assert "rank 1 was started twice" in text
        assert all(f"on {HOST}, process {pid}" in text for pid in pids)
        assert "a different --local_rank" in text


def test_rank_0_twice_is_reported(crew):
    crew.start_all(meet, 1, "--timeout 8 --world_size 2")
    crew.start_all(meet, 1, "--timeout 8 --world_size 2")
    first, second = sorted((ends(worker) for worker in crew.workers), key=len)
    assert "rank 0 timed out waiting for rank 1 (of 2 workers)" in first
    assert f"rank 0 cannot listen at 127.0.0.1:{crew.port}: Address already in use" in second


def differ(flags, crew):
    """Start task 2(b), rank 1 with other flags; the lines that both ranks tell."""
    crew.start("task2b", 0, 2)
    crew.start("task2b", 1, 2, flags)
    texts = [ends(worker).splitlines() for worker in crew.workers]
    assert texts[0] == texts[1]
    assert not crew.steps(0)
    assert not crew.steps(1)
    assert texts[0][0] == "run_glue.py: the workers were started with different settings:"
    return texts[0][1:]


def both(name, first, second):
    """What is reported of a fact that differs, in the order in which the ranks arrived."""
    a, b = f"{first} at rank 0 ({HOST})", f"{second} at rank 1 ({HOST})"
    return [
        f"- {name} is {x} but {y}; start all workers with the same value"
        for x, y in ((a, b), (b, a))
    ]


def test_world_sizes_that_differ_are_reported(crew):
    (line,) = differ("--world_size 3", crew)
    assert line in both("--world_size", 2, 3)


def test_arguments_that_differ_are_all_reported_before_the_first_step(crew):
    rate, seed = differ("--learning_rate 1e-3 --seed 7", crew)
    assert rate in both("--learning_rate", 5e-05, 0.001)
    assert seed in both("--seed", 42, 7)


def test_scripts_that_differ_are_reported(crew):
    crew.start("task2a", 0, 2)
    crew.start("task2b", 1, 2)
    for worker in crew.workers:
        assert ends(worker).splitlines()[-1] in both("the task", "'task2a'", "'task2b'")


def test_data_that_differ_are_told_before_the_first_step(crew):
    rows, tokens, digest, row = differ(f"--data_dir {sample(crew.folder / 'other', 60)}", crew)
    assert rows in both("the number of rows of train", 64, 60)
    assert "- the number of tokens of train is " in tokens
    digests = re.findall("'[0-9a-f]{64}'", digest)
    name = "the data of train"
    assert digest in both(name, *digests) + both(name, *digests[::-1])
    assert row == "- the first row of train that differs is row 61, which rank 1 does not have"


def test_the_first_row_that_differs_is_shown(crew):
    other = sample(crew.folder / "other")
    lines = (other / "train.tsv").read_text().splitlines(keepends=True)
    for row in (23, 40):  # lines[0] is the header
        label = "not_entailment" if "not_" not in lines[row] else "entailment"
        lines[row] = lines[row].rpartition("\t")[0] + f"\t{label}\n"
    (other / "train.tsv").write_text("".join(lines))
    *_, row = differ(f"--data_dir {other}", crew)
    shown = r"- the first row of train that differs is row 23: '\.\.\..* \[SEP\], label (0|1)' at "
    found = re.fullmatch(shown + r"rank 0 and '(\.\.\..* \[SEP\], label) (0|1)' at rank 1", row)
    assert found, row
    assert found[1] != found[3]


def test_weights_that_differ_are_told_before_the_first_step(crew):
    model = tiny_model(2)
    model.classifier.bias.data[0] += 1e-6
    (line,) = differ(f"--model_name_or_path {save(model, crew.folder)}", crew)
    digests = re.findall("'[0-9a-f]{64}'", line)
    assert line in both("weights", *digests) + both("weights", *digests[::-1])


def test_places_may_differ_if_what_lies_there_is_the_same(crew):
    data, output = sample(crew.folder / "other"), crew.folder / "elsewhere"
    model = save(tiny_model(2), crew.folder)
    crew.start("task2b", 0, 2)
    flags = f"--model_name_or_path {model} --data_dir {data} --output_dir {output}"
    crew.start("task2b", 1, 2, flags)
    for worker in crew.workers:
        assert ends(worker, 0) == ""
    assert crew.steps(0) == (output / "steps.rank1.jsonl").read_text().count("\n") == 6


def save(model, folder):
    """Save the tiny model's likes; returns the folder."""
    model.save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")
    return folder / "model"


def member(rank, host="a", gpus=0, **facts):
    """What a worker publishes about itself."""
    return {"rank": rank, "host": host, "pid": rank, "gpus": gpus, "facts": facts}


def test_versions_that_differ_are_reported():
    versions = [(2, "a", "2.13.0"), (0, "b", "2.12.1"), (1, "b", "2.13.0")]
    published = [member(rank, host, torch=version) for rank, host, version in versions]
    assert differences(published) == [
        "- torch is '2.13.0' at rank 2 (a) but '2.12.1' at rank 0 (b); "
        "start all workers with the same value"
    ]
    assert differences([published[0], published[2]]) == []


def test_a_worker_tells_its_versions_and_flags_but_not_its_places():
    places = {"data_dir": "here", "resume": "auto"}
    args = SimpleNamespace(task="task3", seed=7, no_cuda=True, local_rank=1, **places)
    published = workers.worker_info(args, 1, "192.0.2.1", "eth0")
    assert published["facts"] == {
        "--seed": 7,
        "the task": "task3",
        "the version of torch": torch.__version__,
        "the version of transformers": transformers.__version__,
        "the version of tokenizers": tokenizers.__version__,
    }
    assert (published["rank"], published["host"], published["pid"]) == (1, HOST, os.getpid())


@pytest.mark.parametrize("gpus", [[0, 0, 0], [1, 1, 0], [1, 1, 9], [9, 0, 9]])
def test_nccl_needs_a_gpu_for_each_worker(gpus):
    members = [member(rank, host, gpus[rank]) for rank, host in enumerate("aab")]
    auto, nccl = SimpleNamespace(backend="auto"), SimpleNamespace(backend="nccl")
    assert workers.choose_device(auto, 0, members) == ("gloo", torch.device("cpu"))
    with pytest.raises(UserError, match=r"--backend nccl: .*--backend gloo"):
        workers.choose_device(nccl, 0, members)


def test_gloo_stays_on_the_cpu_where_there_are_gpus():
    gloo = SimpleNamespace(backend="gloo")
    assert workers.choose_device(gloo, 0, [member(0, gpus=8)]) == ("gloo", torch.device("cpu"))


def test_a_stray_is_refused_and_the_running_job_does_not_notice(crew):
    running = crew.start_all("task2b", 2, "--max_steps 1000000")
    crew.wait_for_step(1)
    strays = [
        crew.start("task2b", 1, 2),  # a second rank 1
        crew.start("task3", 2, 3, "--seed 7"),  # of another run, of another size
    ]
    pids = [worker.process.pid for worker in running]
    for stray in strays:
        (line,) = ends(stray).splitlines()
        assert f"rank {stray.rank} is refused: a run of 2 workers has been going on" in line
        assert f"rank 0 on {HOST}, process {pids[0]}" in line
        assert re.search(r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line)
    crew.workers = running
    done = crew.steps(0)
    crew.wait_for_step(done + 50)  # several heartbeats later
    assert [worker.errors for worker in running] == [[], []]


STRANGERS = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "TLS": bytes.fromhex("1603010200010001fc0303") + bytes(range(32)),
    "zeros": bytes(4096),
    "noise": bytes(index * 37 % 251 for index in range(4096)),
    "nothing": b"",
}


def test_strangers_at_the_port_are_ignored(crew):
    first = crew.start(meet, 0, 3)
    crew.wait_until(lambda: first.waits_for)
    with contextlib.ExitStack() as stack:
        for greeting in STRANGERS.values():
            for stays in (True, False):
                stranger = socket.create_connection(("127.0.0.1", crew.port), timeout=DEADLINE)
                stranger.sendall(greeting)
                stack.callback(stranger.close) if stays else stranger.close()
        crew.start(meet, 1, 3)
        crew.start(meet, 2, 3)
        assert_met(crew, 3, "the command line")


@pytest.mark.slow
def test_workers_end_with_tests_that_are_killed(tmp_path):
    code = f"""
from pathlib import Path
from tests.workers import Crew
crew = Crew(Path({str(tmp_path)!r}))
crew.start("task1", 0, flags="--max_steps 1000000", env={{"MARK": {str(tmp_path)!r}}})
crew.wait_for_step(1)
print(crew.workers[0].process.pid, flush=True)
input()
"""
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as tests:
        worker = psutil.Process(int(tests.stdout.readline()))
        tests.kill()
    worker.wait(DEADLINE)
