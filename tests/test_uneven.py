"""Unequal parts of a batch: how they are shared out, who reads which rows, and the losses."""

import json
import os
import random
from types import SimpleNamespace

from cluster.launch import Place, launch
from common.cli import parse_args
from common.data.uneven import UnevenBatches
from common.errors import UserError
from common.speed import Speed, ideal_parts
from common.uneven import in_proportion, split_batch
from tests.test_loader import TOKENIZER, flat, numbered, order, share
from tests.workers import ROOT, sample

import pytest
import torch

SPLITS = ["24,20,12,8", "61,1,1,1", "16,16,16,16"]
ROWS, BATCH = 250, 64  # three full batches, and one of 58 as RTE has
FLAGS = """--model_name_or_path tiny --task_name RTE --do_train --dropout 0 --learning_rate 5e-4
    --max_seq_length 64 --num_train_epochs 1 --no_cuda --timeout 60 --save_strategy no"""


def parts_of(sizes, rows, accumulate=1, seed=42):
    """Every rank's UnevenBatches."""
    args = SimpleNamespace(
        batch_sizes=sizes,
        split="equal",
        rebalance_steps=20,
        max_batch="",
        gradient_accumulation_steps=accumulate,
        seed=seed,
    )
    size = sizes.count(",") + 1
    worlds = [SimpleNamespace(rank=r, size=size, device=torch.device("cpu")) for r in range(size)]
    features = {"train": numbered(rows)}
    return [UnevenBatches(features, TOKENIZER, args, world) for world in worlds]


def test_the_largest_remainders_get_what_is_left():
    assert in_proportion(64, [1 / 5.2, 1 / 5.0, 1 / 7.3, 1 / 11.2]) == [20, 21, 14, 9]
    assert in_proportion(58, [24, 20, 12, 8]) == [22, 18, 11, 7]
    assert in_proportion(3, [1, 1, 1, 1]) == [1, 1, 1, 0]


def test_the_fixed_cost_of_a_step_is_told_from_that_of_an_example():
    choose, workers, total = random.Random(13), [(0.02, 0.001), (0.02, 0.001), (0.04, 0.002)], 64
    workers.append((0.08, 0.004))
    speeds, sizes, slowest = [Speed() for _ in workers], [16, 16, 16, 16], []
    for _ in range(4):  # four splits, each measured with noise and a step that takes far longer
        for speed, (a, b), n in zip(speeds, workers, sizes, strict=True):
            for _ in range(5):
                speed.add(n, (a + b * n) * choose.uniform(0.97, 1.03))
            speed.add(n, 5 * (a + b * n))
        sizes = split_batch(total, ideal_parts(total, [speed.line() for speed in speeds]))
        slowest.append(max(a + b * n for (a, b), n in zip(workers, sizes, strict=True)))
    best = min(end / 1e4 for end in range(2000) if held(workers, end / 1e4) >= total)
    assert slowest[-1] <= slowest[1] <= 1.1 * best


def held(workers, end):
    """How many examples workers of these costs can do until then, each one at least."""
    return sum(max(1, int((end - a) / b)) if end >= a + b else -999 for a, b in workers)


def test_a_worker_whose_fixed_cost_is_too_much_gets_one_example():
    parts = ideal_parts(16, [(0.1, 0.1), (0.1, 0.1), (9.0, 0.1)])
    assert parts == pytest.approx([8, 8, 1e-3])
    assert split_batch(16, parts) in ([8, 7, 1], [7, 8, 1])
    assert Speed().line() == (0, 0)


def test_every_worker_has_an_example_and_none_more_than_it_holds():
    choose = random.Random(15)
    for _ in range(300):
        size, total = choose.randint(1, 6), choose.randint(6, 99)
        speeds = [choose.choice([0.001, 0.5, 1, 7, 900]) for _ in range(size)]
        most = [choose.randint(1, 99) + total // size for _ in range(size)]
        parts = split_batch(total, speeds, most)
        assert sum(parts) == total
        assert all(1 <= part <= limit for part, limit in zip(parts, most, strict=True))
    assert split_batch(64, [1, 1, 2, 4], [16, 16, 16, 20]) == [14, 14, 16, 20]
    assert split_batch(2, [5, 1, 1]) == [2, 0, 0]
    with pytest.raises(UserError, match="sums to 5, fewer than the 6 examples of a batch"):
        split_batch(6, [1, 1], [2, 3])


@pytest.mark.parametrize(("accumulate", "rows"), [(1, 250), (2, 250), (1, 129), (1, 66)])
@pytest.mark.parametrize("sizes", [*SPLITS, "32,32", "64"])
def test_all_ranks_together_read_what_one_worker_reads(sizes, accumulate, rows):
    ranks = parts_of(sizes, rows, accumulate)
    alone = share(0, 1, BATCH, rows, accumulate)
    assert {len(rank) for rank in ranks} == {len(alone)}
    for epoch in (1, 2):
        steps = zip(*(rank.epoch(epoch) for rank in ranks), order(alone, epoch), strict=True)
        for *parts, whole in steps:
            assert {part.total for part in parts} == {len(whole)}
            assert sum(part.examples for part in parts) == len(whole)
            real = [[p for p in part if p[1]] for part in parts]
            read = [row for part in real for batch, _ in part for row in batch["labels"].tolist()]
            assert read == whole
            shares = [sum(weight for _, weight in part) for part in parts]
            assert shares == pytest.approx([float(part.examples > 0) for part in parts])
            assert all(len(part) for part in parts)  # one without rows computes with weight 0


def test_a_last_batch_is_split_in_proportion_and_none_of_its_rows_is_read_twice():
    last = [list(rank.epoch(1))[-1] for rank in parts_of("24,20,12,8", 2490)]
    assert [part.examples for part in last] == [22, 18, 11, 7]
    every = flat(flat(order(rank)) for rank in parts_of("24,20,12,8", 2490))
    assert sorted(every) == list(range(2490))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--batch_sizes 24,20,12", "has 3 numbers for 4 worker(s); give one for each"),
        ("--batch_sizes 24,20,12,0", "24,20,12,0: must be whole numbers of at least 1"),
        ("--batch_sizes 24,20,12,", "must be whole numbers of at least 1, separated by commas"),
        ("--batch_sizes 24,20,12,x", "must be whole numbers of at least 1"),
        ("--batch_sizes 9,9,9,9.5", "must be whole numbers of at least 1"),
        (
            "--batch_sizes 24,20,12,8 --per_gpu_train_batch_size 16",
            "--batch_sizes and --per_gpu_train_batch_size: both set the batch; give one of them",
        ),
        ("--slow 1,1,2,0.5", "--slow 1,1,2,0.5: must be numbers of at least 1, separated by"),
        ("--slow 1,2", "--slow 1,2: has 2 numbers for 4 worker(s)"),
        ("--max_batch 8,8,8,8 --per_gpu_train_batch_size 9", "sums to 32, fewer than the 36"),
        (
            "--max_batch 24,20,8,8 --batch_sizes 24,20,12,8",
            "--max_batch 24,20,8,8 allows for rank 2",
        ),
        ("--batch_sizes 1,2,3,4 --split auto", "both set the workers' parts; give one of them"),
        ("--rebalance_steps 0", "--rebalance_steps 0: must be at least 1"),
    ],
)
def test_wrong_sizes_are_refused_with_what_to_give(flags, words, tmp_path):
    command = f"{FLAGS} --data_dir {tmp_path} --output_dir {tmp_path / 'out'} {flags} "
    command += "--master_ip 127.0.0.1 --master_port 6585 --world_size 4 --local_rank 0"
    with pytest.raises(UserError) as error:
        parse_args(ROOT / "task5" / "run_glue.py", argv=command.split(), env={})
    (line,) = str(error.value).splitlines()
    assert words in line


@pytest.fixture(scope="module")
def run(tmp_path_factory, template):
    """Run a script with some parts: its global losses, examples by step and rank, and output."""
    data = sample(tmp_path_factory.mktemp("data") / "RTE", ROWS)

    def run(script, sizes, more="", workers=None):
        folder = tmp_path_factory.mktemp("run")
        workers = workers or sizes.count(",") + 1
        command = f"{ROOT / script} {FLAGS} --data_dir {data} --output_dir {folder} {more} "
        if sizes:
            command += f"--batch_sizes {sizes}" if workers > 1 else "--per_gpu_train_batch_size 64"
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
        place = Place(template=template)
        result = launch(command.split(), workers, quiet=True, env=env, place=place)
        assert result.code == 0, result.summary()
        ranks = [
            [json.loads(line) for line in file.read_text().splitlines()]
            for file in sorted(folder.glob("steps.rank*.jsonl"))
        ]
        steps = list(zip(*ranks, strict=True))
        examples = [[line["examples"] for line in step] for step in steps]
        losses = [
            sum(line["loss"] * line["examples"] for line in step) / sum(counts)
            for step, counts in zip(steps, examples, strict=True)
        ]
        return SimpleNamespace(
            folder=folder,
            losses=torch.tensor(losses),
            examples=examples,
            facts=json.loads((folder / "run.json").read_text()),
            output="\n".join(result.workers[0].stdout),
        )

    return run


@pytest.fixture(scope="module")
def alone(run):
    """One worker's run with the whole batch."""
    return run("task1/run_glue.py", "64")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_losses_are_one_workers_whatever_the_parts(run, alone):
    for sizes, last in zip(SPLITS, ([22, 18, 11, 7], [55, 1, 1, 1], [15, 15, 14, 14]), strict=True):
        uneven = run("task5/run_glue.py", sizes)
        assert uneven.examples == [list(map(int, sizes.split(",")))] * 3 + [last]
        assert (uneven.losses - alone.losses).abs().max() < 1e-5
    wrapped = run("task5/ddp.py", SPLITS[0])
    assert (wrapped.losses - alone.losses).abs().max() < 1e-5


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_mean_of_means_is_another_one_and_rank_0_says_so(run, alone):
    wrong = run("task2b/run_glue.py", "61,1,1,1")
    assert abs(wrong.losses[0] - alone.losses[0]) < 1e-6
    assert (wrong.losses - alone.losses).abs().max() > 1e-3
    assert "task 2(b) takes the mean of the workers' means" in wrong.output


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_split_by_speed_changes_the_parts_and_not_the_losses(run):
    """Of a worker that is 30 times slower; and resumed, too."""
    script = "task5/run_glue.py"
    flags = (
        "--per_gpu_train_batch_size 16 --split auto --rebalance_steps 3 --max_batch 48,14,48,48 "
    )
    flags += "--slow 1,1,1,30 --num_train_epochs 2 --save_strategy steps --save_total_limit 9 "
    ours = run(script, "", f"{flags} --save_steps 3", workers=4)
    alone = run("task1/run_glue.py", "64", "--num_train_epochs 2")
    assert (ours.losses - alone.losses).abs().max() < 1e-5
    first, *later = ours.facts["splits"]
    assert first == {"steps_before": 0, "sizes": [17, 14, 17, 16]}
    assert [each["steps_before"] for each in later] == [3, 5, 6]
    for each in later:
        sizes = each["sizes"]
        assert sum(sizes) == 64
        assert sizes[1] <= 14
        assert 1 <= sizes[3] < min(sizes[:3])
        fixed, per_example = each["milliseconds_per_step"], each["milliseconds_per_example"]
        of_16 = [a + 16 * b for a, b in zip(fixed, per_example, strict=True)]
        assert of_16[3] > 3 * of_16[0]
        text = f"parts from step {each['steps_before'] + 1} on: {','.join(map(str, sizes))} (milli"
        assert text in ours.output
    again = run(
        script, "", f"{flags} --resume {ours.folder / 'checkpoint-3'} --save_steps 9", workers=4
    )
    assert again.facts["resumed"] == [3]
    assert (again.losses - ours.losses).abs().max() < 1e-5
    assert again.facts["splits"][:2] == ours.facts["splits"][:2]
    assert [each["steps_before"] for each in again.facts["splits"]] == [0, 3, 5, 6]
    assert again.examples[:5] == ours.examples[:5]
    assert again.losses[:5].tolist() == ours.losses[:5].tolist()  # until it is split again
