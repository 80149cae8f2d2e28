"""Each rank's share of the data: what it is, in which order, and how it is padded."""

import functools
import math
from types import SimpleNamespace

from common.cli import parse_args
from common.data.features import Features
from common.data.glue import find_glue_task
from common.data.loader import TrainingBatches, collate, load_splits
from common.models.tiny import tiny_tokenizer

import pytest
import torch

TOKENIZER = SimpleNamespace(pad_token_id=77, pad_token_type_id=3)
RTE_ROWS = 2490


@functools.cache
def numbered(rows):
    """Features of 1 to 6 tokens each, whose label is the row's number."""
    lengths = [1 + row * row % 6 for row in range(rows)]
    ids = torch.arange(sum(lengths), dtype=torch.int32)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    tensors = {"input_ids": ids, "token_type_ids": ids % 2, "offsets": offsets}
    return Features({**tensors, "labels": torch.arange(rows)})


def share(rank, size, batch, rows=RTE_ROWS, accumulate=1, seed=42):
    args = SimpleNamespace(
        per_gpu_train_batch_size=batch, gradient_accumulation_steps=accumulate, seed=seed
    )
    world = SimpleNamespace(rank=rank, size=size, device=torch.device("cpu"))
    return TrainingBatches({"train": numbered(rows)}, TOKENIZER, args, world)


def rows_of(step):
    """The row numbers of a step's examples, over its micro-batches."""
    return [row for batch, _ in step for row in batch["labels"].tolist()]


def order(batches, epoch=1):
    """The rows in the order of an epoch, a list per step."""
    return [rows_of(step) for step in batches.epoch(epoch)]


def flat(lists):
    return [item for items in lists for item in items]


@pytest.mark.parametrize(("rows", "size"), [(96, 1), (96, 4), (100, 2), (120, 3)])
def test_the_shares_are_disjoint_and_complete(rows, size):
    shares = [flat(order(share(rank, size, 8, rows))) for rank in range(size)]
    assert [len(each) for each in shares] == [rows // size] * size
    assert sorted(flat(shares)) == list(range(rows))


def test_rtes_2490_rows_are_dealt_as_2492_to_four_ranks():
    shares = [flat(order(share(rank, 4, 16))) for rank in range(4)]
    assert [len(each) for each in shares] == [623] * 4
    assert set(flat(shares)) == set(range(RTE_ROWS))
    twice = [row for row in set(flat(shares)) if flat(shares).count(row) == 2]
    assert len(twice) == 2
    assert flat(order(share(0, 1, 64)))[:2] == [shares[2][-1], shares[3][-1]]


@pytest.mark.parametrize("epoch", [1, 2])
def test_four_ranks_with_16_see_in_each_step_what_one_with_64_sees(epoch):
    alone = order(share(0, 1, 64), epoch)
    ranks = [order(share(rank, 4, 16), epoch) for rank in range(4)]
    assert {len(each) for each in [alone, *ranks]} == {math.ceil(RTE_ROWS / 64)}
    assert len(share(0, 4, 16)) == len(share(0, 1, 64)) == len(alone)
    for whole, *parts in list(zip(alone, *ranks, strict=True))[:-1]:
        assert sorted(flat(parts)) == sorted(whole)
        assert [len(part) for part in parts] == [16] * 4
    assert {len(rank[-1]) for rank in ranks} == {623 % 16}


def test_every_epoch_has_an_order_of_its_own_and_every_run_the_same():
    batches = share(1, 4, 16)
    first, second, third = (flat(order(batches, epoch)) for epoch in (1, 2, 3))
    in_place = sum(a == b for a, b in zip(first, second, strict=True))
    assert in_place < len(first) / 10
    assert second not in (first, third)
    assert flat(order(batches, 1)) == first == flat(order(share(1, 4, 16), 1))
    assert first != sorted(first)


def test_the_seed_decides_the_order_for_all_ranks_alike():
    for seed in (42, 43):
        ranks = [flat(order(share(rank, 4, 16, seed=seed))) for rank in range(4)]
        dealt = [row for turn in zip(*ranks, strict=True) for row in turn]
        assert dealt[:RTE_ROWS] == flat(order(share(0, 1, 64, seed=seed)))
    assert order(share(0, 1, 64, seed=42)) != order(share(0, 1, 64, seed=43))


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_micro_batches_share_out_a_step(accumulate):
    """29 rows in steps of 8: the last step has 5, which no number of micro-batches divides."""
    batches = share(0, 1, 8 // accumulate, 29, accumulate)
    steps = list(batches.epoch(1))
    assert len(batches) == len(steps) == 4
    assert [rows_of(step) for step in steps] == order(share(0, 1, 8, 29))
    for step in steps:
        counts = [len(batch["labels"]) for batch, _ in step]
        assert max(counts) <= 8 // accumulate
        assert sum(part for _, part in step) == pytest.approx(1)
        assert [part for _, part in step] == [count / sum(counts) for count in counts]
    assert len(steps[0]) == accumulate


def test_a_batch_is_padded_to_its_longest_and_masked():
    ids = [[5, 6, 7], [8], [9, 9]]
    rows = [
        {
            "input_ids": torch.tensor(row),
            "token_type_ids": torch.zeros(len(row), dtype=torch.int64),
            "labels": torch.tensor(label),
        }
        for label, row in enumerate(ids)
    ]
    batch = collate(rows, TOKENIZER, torch.device("cpu"))
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 77, 77], [9, 9, 77]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0], [0, 3, 3], [0, 0, 3]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    assert batch["labels"].tolist() == [0, 1, 2]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    del rows[0]["token_type_ids"]
    assert set(collate(rows[:1], TOKENIZER, "cpu")) == {"input_ids", "attention_mask", "labels"}


def test_a_batch_holds_whole_examples():
    features = numbered(29)
    for batch, _ in flat(share(0, 1, 8, 29).epoch(1)):
        for place, row in enumerate(batch["labels"].tolist()):
            length = int(batch["attention_mask"][place].sum())
            for name in ("input_ids", "token_type_ids"):
                assert batch[name][place, :length].equal(features[row][name])


@pytest.fixture
def args(tmp_path):
    def args(task, *switches):
        """The arguments of a run on a few rows of that task."""
        word, column = ("2.5", "score") if task == "STS-B" else ("neutral", "gold_label")
        lines = [f"sentence1\tsentence2\t{column}", *[f"A {n}\tB\t{word}" for n in range(3)]]
        for split, file in find_glue_task(task).files.items():
            if not split.startswith("test"):
                (tmp_path / file).write_text("\n".join(lines) + "\n")
        given = f"--model_name_or_path tiny --task_name {task} --output_dir {tmp_path / 'out'}"
        command = [*given.split(), "--data_dir", str(tmp_path), *switches]
        return parse_args("task1/run_glue.py", argv=command, env={})

    return args


@pytest.mark.parametrize(
    ("task", "switches", "splits"),
    [
        ("STS-B", ["--do_train"], ["train"]),
        ("STS-B", ["--do_eval"], ["dev"]),
        ("MNLI", ["--do_train", "--do_eval"], ["train", "dev", "dev_mismatched"]),
    ],
)
def test_only_the_splits_that_a_run_needs_are_read(args, task, switches, splits):
    loaded = load_splits(args(task, *switches), find_glue_task(task), tiny_tokenizer())
    assert list(loaded) == splits
    assert [len(features) for features in loaded.values()] == [3] * len(splits)


@pytest.mark.parametrize(("task", "dtype"), [("STS-B", torch.float32), ("MNLI", torch.int64)])
def test_labels_of_a_regression_are_scores_and_others_class_ids(args, task, dtype):
    given = args(task, "--do_train")
    splits = load_splits(given, find_glue_task(task), tiny_tokenizer())
    world = SimpleNamespace(rank=0, size=1, device=torch.device("cpu"))
    ((batch, _),) = next(TrainingBatches(splits, tiny_tokenizer(), given, world).epoch(1))
    assert batch["labels"].dtype == dtype
    assert batch["labels"].tolist() == [2.5 if task == "STS-B" else 2] * 3


def test_without_training_there_are_no_batches(args):
    given = args("MNLI", "--do_eval")
    world = SimpleNamespace(rank=0, size=1, device=torch.device("cpu"))
    assert len(TrainingBatches({}, tiny_tokenizer(), given, world)) == 0
