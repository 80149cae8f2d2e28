"""The bytes of each collective: handed over, expected on the wire, and counted on the interface."""

import csv
import dataclasses
import functools
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from common.cli import parse_args
from common.record.format import difference
from common.record.traffic import Traffic, expected_bytes, table
from common.workers import world
from common.workers.network import loopback
from experiments import traffic as sweep
from staff.tests.test_figures import make_run

import pytest
import torch
import torch.distributed as dist

ROOT = Path(__file__).parents[2]
BYTES = 1200
METHODS = {  # and the collectives that carry each gradient
    "2a": ["gather", "scatter"],
    "2b": ["all_reduce"],
    "3": ["all_reduce"],
}
RUNS = [(method, dtype) for method in METHODS for dtype in ("float32", "bfloat16")]
STEPS = 16  # 4 epochs: few enough to be quick, enough for what is under way at the last one's end


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("root", [0, "last"])
def test_what_collectives_move_by_the_textbook(size, root):
    root = size - 1 if root == "last" else root
    moved = {
        op: [expected_bytes(op, rank, size, BYTES, root) for rank in range(size)]
        for op in ("all_reduce", "gather", "scatter")
    }
    ring = 2 * (size - 1) / size * BYTES
    assert moved["all_reduce"] == [(ring, ring)] * size
    others = [BYTES * (rank != root) for rank in range(size)]
    at_root = [(size - 1) * BYTES * (rank == root) for rank in range(size)]
    assert moved["gather"] == list(zip(others, at_root, strict=True))
    assert moved["scatter"] == list(zip(at_root, others, strict=True))


@pytest.mark.parametrize("size", [2, 4, 16])
@pytest.mark.parametrize("ops", [["all_reduce"], ["gather", "scatter"]], ids="+".join)
def test_in_total_both_ways_to_average_move_the_same(size, ops):
    moved = [expected_bytes(op, rank, size, BYTES) for op in ops for rank in range(size)]
    for total in map(sum, zip(*moved, strict=True)):
        assert total == pytest.approx(2 * (size - 1) * BYTES)


def namespace():
    """The command that gives another a network of its own, or why there is none."""
    refusal = "unshare is missing"
    for own in (["unshare", "-n"], ["unshare", "-rn"]):
        command = [*own, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        try:
            tried = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=20)
        except OSError:
            continue
        if tried.returncode == 0:
            return command, ""
        refusal = tried.stderr.strip()
    return [], f"no network of its own to count in: {refusal}"


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """Run task 4 with two workers, once for each method and type, in a network of its own."""
    data = tmp_path_factory.mktemp("data")
    for split in ("train", "dev"):
        lines = (ROOT / "sample_data" / "RTE" / f"{split}.tsv").read_text().splitlines(True)[:33]
        (data / f"{split}.tsv").write_text("".join(lines))
    own_network, reason = namespace()

    @functools.cache
    def once(method, dtype):
        folder = tmp_path_factory.mktemp(f"{method}-{dtype}")
        command = f"""{sys.executable} -m cluster.launch --workers 2 {ROOT}/task4/run_glue.py
            --model_name_or_path tiny --task_name RTE --do_train --data_dir {data} --no_cuda
            --per_gpu_train_batch_size 4 --max_seq_length 32 --max_steps {STEPS} --timeout 60
            --dropout 0 --learning_rate 1e-3
            --output_dir {folder} --method {method} --gradient_dtype {dtype}"""
        command = [*own_network, *command.split()]
        return folder, subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=150
        )

    def profile(method, dtype):
        folder, done = once(method, dtype)
        assert done.returncode == 0, done.stderr
        ranks = []
        for rank in range(2):
            with (folder / f"collectives.rank{rank}.csv").open(newline="") as file:
                rows = list(csv.DictReader(file))
            summary = json.loads((folder / f"traffic.rank{rank}.json").read_text())
            lines = (folder / f"steps.rank{rank}.jsonl").read_text().splitlines()
            losses = [json.loads(line)["loss"] for line in lines]
            ranks.append(SimpleNamespace(rows=rows, summary=summary, losses=losses))
        gradients = json.loads((folder / "run.json").read_text())["gradient_bytes"]
        half = {"float32": 1, "bfloat16": 2}[dtype]
        return SimpleNamespace(
            ranks=ranks, bytes=gradients // half, printed=done.stdout, no_network=reason
        )

    return profile


@pytest.mark.slow
@pytest.mark.parametrize(("method", "dtype"), RUNS)
def test_every_iteration_hands_over_each_gradient_once(profile, method, dtype):
    run = profile(method, dtype)
    for rank in run.ranks:
        handed = Counter()
        for row in rank.rows:
            handed[int(row["step"]), row["collective"]] += int(row["bytes"])
            width = getattr(torch, row["dtype"]).itemsize
            elements = torch.Size(map(int, row["shape"].split("x"))).numel()
            assert int(row["bytes"]) == elements * width
            assert row["dtype"] == dtype
        steps = range(1, STEPS + 1)
        assert handed == {(step, op): run.bytes for step in steps for op in METHODS[method]}


@pytest.mark.slow
@pytest.mark.parametrize(("method", "dtype"), RUNS)
def test_the_summary_is_of_these_collectives(profile, method, dtype):
    run = profile(method, dtype)
    for number, rank in enumerate(run.ranks):
        told = rank.summary
        assert (told["method"], told["dtype"], told["world_size"]) == (method, dtype, 2)
        assert told["interface_carries"] == "all ranks"
        own = [expected_bytes(op, number, 2, run.bytes) for op in METHODS[method]]
        sent, received = (sum(each) for each in zip(*own, strict=True))
        for line in told["iterations"]:
            assert line["payload"] == run.bytes * len(METHODS[method])
            assert line["sent_bytes"] == pytest.approx(sent)
            assert line["received_bytes"] == pytest.approx(received)
            assert line["expected"] == pytest.approx(2 * 2 * run.bytes)
        assert [line["step"] for line in told["iterations"]] == list(range(1, STEPS + 1))
        for key, mean in told["per_iteration"].items():
            total = pytest.approx(sum(line[key] for line in told["iterations"]))
            assert mean * STEPS == total
            assert sum(epoch[key] for epoch in told["epochs"]) == total
        assert [epoch["epoch"] for epoch in told["epochs"]] == list(range(1, STEPS // 4 + 1))
    assert f"traffic of {method}, 2 workers, {dtype}:" in run.printed
    assert f"{2 * 2 * run.bytes:,}" in run.printed


@pytest.mark.slow
@pytest.mark.parametrize(("method", "dtype"), RUNS)
def test_the_interface_carries_what_is_expected(profile, method, dtype):
    """Headers and signs of life come on top; nothing else is in the network."""
    run = profile(method, dtype)
    if run.no_network:
        pytest.skip(run.no_network)
    for rank in run.ranks:
        assert abs(difference(rank.summary["per_iteration"])) < 2


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_rounded_gradients_are_averaged_too(profile, method):
    """Nearly the losses of exact ones, on each rank."""
    exact = [rank.losses for rank in profile("2b", "float32").ranks]
    rounded = [rank.losses for rank in profile(method, "bfloat16").ranks]
    assert rounded != exact
    assert rounded == [pytest.approx(losses, abs=1e-3) for losses in exact]


@pytest.fixture
def traffic(tmp_path, monkeypatch):
    """The Traffic of a run of one worker, in this process."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", loopback())
    command = f"--model_name_or_path tiny --task_name RTE --do_train --data_dir {tmp_path} "
    command += f"--output_dir {tmp_path} --no_cuda"
    args = parse_args(str(ROOT / "task4" / "run_glue.py"), argv=command.split(), env={})
    args.method, args.gradient_dtype = "2b", "float32"
    alone = world.join(args)
    made = Traffic(args, alone)
    yield made
    made.stop.set()
    world.leave(alone)


def test_collectives_are_recorded_while_they_are_watched_and_restored_after(traffic):
    original = dist.all_reduce

    def average(tensor, fails=False):
        dist.all_reduce(tensor)
        if fails:
            raise KeyboardInterrupt

    watched = traffic.recording(average)
    for step in traffic.steps([0, 1], epoch=1):
        watched(torch.ones(5, 2))
        if step:
            with pytest.raises(KeyboardInterrupt):
                watched(torch.ones(3, dtype=torch.float64), fails=True)
        average(torch.ones(7))
    assert dist.all_reduce is original
    first = (1, "all_reduce", [5, 2], "float32", 40)
    assert traffic.collectives == [first, (2, *first[1:]), (2, "all_reduce", [3], "float64", 24)]
    assert [line["payload"] for line in traffic.iterations] == [40, 64]
    assert [line["expected"] for line in traffic.iterations] == [0, 0]
    assert "%" not in table(traffic.summary())


def test_an_interface_of_ones_own_carries_ones_own_bytes(traffic):
    members = [{"nic": traffic.world.nic, "address": f"10.0.0.{n}"} for n in range(2)]
    apart = dataclasses.replace(traffic.world, rank=0, size=2, members=members)
    profiled = Traffic(traffic.args, apart)
    profiled.stop.set()
    for _ in profiled.steps([0], epoch=1):
        profiled.note("gather", torch.ones(9))
    assert profiled.summary()["interface_carries"] == "this rank"
    assert profiled.iterations[0]["expected"] == 36


def test_the_csv_is_dstats(traffic):
    """A group row, a row of columns in it, then bytes per second."""
    path, deadline = traffic.folder / "net.rank0.csv", time.monotonic() + 60
    while not path.exists() or len(path.read_text().splitlines()) < 7:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    traffic.finish()
    assert '"system","net/total",""' in path.read_text()
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    groups = next(n for n, row in enumerate(rows) if "net/total" in row)
    at = rows[groups].index("net/total")
    assert rows[groups + 1][at : at + 2] == ["recv", "send"]
    rates = [[float(value) for value in row[at : at + 2]] for row in rows[groups + 2 :]]
    assert len(rates) >= 2
    assert min(map(min, rates)) >= 0
    assert not traffic.sampler.is_alive()


def test_the_bytes_of_an_epoch_are_extrapolated_from_a_part_of_it(tmp_path):
    """The sweep's runs may be of a few steps: 2 of 4 here."""
    run = make_run(tmp_path / "b16", "task4", [0.9, 0.8], ("2b", "float32", 8e6, 9e6))
    run.traffic["epochs"] = [{"epoch": 1, "measured": 18e6}]
    run.traffic["iterations"] = [{"epoch": 1}] * 2
    row = sweep.row(run, 16)
    assert (row["iterations"], row["of an epoch's"], row["measured, MB/epoch"]) == (2, 4, 36)
    assert "MB/epoch: extrapolated" in sweep.rows_table([row])
    run.traffic["iterations"] *= 2
    row = sweep.row(run, 16)
    assert row["measured, MB/epoch"] == 18
    assert "extrapolated" not in sweep.rows_table([row])
