"""What a run prints and leaves behind, of one rank in this process."""

import dataclasses
import json
import math
import threading
from pathlib import Path
from types import SimpleNamespace

from common.cli import parse_args
from common.data.loader import EqualParts
from common.errors import UserError
from common.files import write_whole
from common.models.tiny import tiny_model, tiny_tokenizer
from common.record.facts import describe
from common.record.first_losses import FirstLosses
from common.record.record import Record
from common.workers import world
from common.workers.network import loopback

import pytest
import torch
from transformers import AutoModelForSequenceClassification

ROWS, TOKENS = 5, 3
STALE = ["steps.rank0.jsonl", "steps.rank1.jsonl", "steps.rank12.jsonl"]
STALE += ["run.json", "eval_results.txt", "trace.rank0.json", "trace.rank3.json"]


class Batches(EqualParts):
    """Three steps an epoch, of one batch each: of 4, 4 and 2 examples."""

    def __len__(self):
        return 3

    def epoch(self, _):
        for rows in (4, 4, 2):
            yield [({"attention_mask": torch.tensor([[1] * TOKENS + [0]] * rows)}, 1.0)]


def data_of(args, split="train", rows=10):
    """What Record reads of a run's data; without `train` there are no steps."""
    total = args.max_steps if args.max_steps > 0 else math.ceil(3 * args.num_train_epochs)
    steps = total if split == "train" else 0
    splits = {split: range(rows)}
    return SimpleNamespace(
        splits=splits, batches=Batches(), total_steps=steps, tokenizer=tiny_tokenizer()
    )


class Constant(torch.nn.Module):
    """A model whose loss is its one weight."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, **_):
        return SimpleNamespace(loss=self.weight * 1)


@pytest.fixture
def args(tmp_path):
    """The arguments of task 1 with further flags, which writes in tmp_path/out."""

    def args(more=""):
        command = f"--model_name_or_path tiny --task_name RTE --do_train --data_dir {tmp_path} "
        command += f"--output_dir {tmp_path / 'out'} --no_cuda --overwrite_output_dir {more}"
        command += " --save_strategy no"
        return parse_args("task1/run_glue.py", argv=command.split(), env={})

    return args


@pytest.fixture
def alone(args, monkeypatch):
    """The world of one worker."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", loopback())
    alone = world.join(args())
    yield alone
    world.leave(alone)


@pytest.fixture(scope="module")
def model():
    return tiny_model(2)


@pytest.fixture
def train(args, alone, model):
    """Go through a run as the tasks do, but with no backward pass; returns it, unfinished."""

    def train(more="", rank=0, size=1):
        given, constant = args(more), Constant()
        member, data = dataclasses.replace(alone, rank=rank, size=size), data_of(given)
        done = Record(given, member, constant, data, torch.optim.SGD(constant.parameters()))
        done.facts |= describe(given, member, model, data.splits)
        for epoch in done.epochs():
            for step in done.steps(data, epoch):
                for batch, _ in step:
                    constant.weight.data.fill_(0.5 * (done.schedule.step + 1))
                    constant(**batch)
                assert len(step) == 1
            done.end_epoch(epoch, {"acc": epoch / 4, "f1": 0.25})
        return done

    return train


def lines_of(folder, rank=0):
    text = (folder / f"steps.rank{rank}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def run_json(folder):
    return json.loads((folder / "run.json").read_text())


@pytest.mark.parametrize(
    ("flags", "epochs"),
    [
        ("--num_train_epochs 2", [1, 1, 1, 2, 2, 2]),
        ("--num_train_epochs 1.5", [1, 1, 1, 2, 2]),
        ("--num_train_epochs 0.1", [1]),
        ("--num_train_epochs 9 --max_steps 2", [1, 1]),
        ("--num_train_epochs 1 --max_steps 7", [1, 1, 1, 2, 2, 2, 3]),
    ],
)
def test_a_run_has_as_many_steps_as_asked_for(train, flags, epochs):
    done = train(flags)
    assert done.schedule.total_steps == done.schedule.step == len(epochs)
    assert [line["epoch"] for line in lines_of(done.folder)] == epochs
    assert [line["step"] for line in lines_of(done.folder)] == list(range(1, len(epochs) + 1))


def test_a_line_shows_the_step_and_is_on_disk_before_the_next(train):
    first, _, third, *_ = lines_of(train().folder)  # the record is open still
    assert (first["loss"], third["loss"]) == (0.5, 1.5)
    assert (first["examples"], first["tokens"]) == (4, 4 * TOKENS)
    assert (third["examples"], third["tokens"]) == (2, 2 * TOKENS)
    seconds = first["seconds"]
    assert list(seconds) == ["total", "data", "forward", "backward", "sync", "update"]
    assert seconds["backward"] == seconds["sync"] == 0 < seconds["forward"]
    assert seconds["total"] == pytest.approx(sum(list(seconds.values())[1:]))


def test_run_json_has_no_end_until_the_run_has_succeeded(train, model):
    done = train("--num_train_epochs 2")
    metrics = ["epoch = 1", "acc = 0.25", "f1 = 0.25", "epoch = 2", "acc = 0.5", "f1 = 0.25"]
    assert (done.folder / "eval_results.txt").read_text().splitlines() == metrics
    before = run_json(done.folder)
    assert before["end"] is None
    assert "iteration_seconds" not in before
    done.finish(model)
    after = run_json(done.folder)
    assert after["start"] <= after["end"]
    assert after["metrics"] == [{"epoch": n, "acc": n / 4, "f1": 0.25} for n in (1, 2)]
    timed = sorted(line["seconds"]["total"] for line in lines_of(done.folder)[1:])
    assert after["iterations_timed"] == 5
    expected = {"mean": sum(timed) / 5, "median": timed[2]}
    assert after["iteration_seconds"] == pytest.approx(expected)
    assert after["gradient_bytes"] == 4 * after["parameters"]
    assert after["examples"] == {"train": 10, "dev": 0}
    assert after["arguments"]["num_train_epochs"] == 2


def test_what_rank_0_prints(train, model, capsys):
    train("--num_train_epochs 2").finish(model)
    *lines, last = capsys.readouterr().out.splitlines()
    losses = [f"minibatch {n}: loss {n * 0.5:.6f}" for n in range(1, 6)]
    metrics = [f"after epoch {n}: acc {n / 4:.4f}, f1 0.2500" for n in (1, 2)]
    assert lines == [*losses[:3], metrics[0], *losses[3:], metrics[1]]
    assert last.startswith("mean time per iteration: ")
    assert last.endswith(" s (5 iterations; the first is discarded)")


def test_the_live_view_shows_every_step(train, model):
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    for _ in range(2):  # the second run replaces the first
        done = train("--report_to tensorboard")
        done.finish(model)
    shown = event_accumulator.EventAccumulator(str(done.folder / "tensorboard")).Reload()
    losses = [(event.step, event.value) for event in shown.Scalars("loss")]
    assert losses == [(line["step"], line["loss"]) for line in lines_of(done.folder)]
    totals = [event.value / 1000 for event in shown.Scalars("milliseconds/total")]
    assert totals == pytest.approx([n["seconds"]["total"] for n in lines_of(done.folder)])
    assert len(shown.Scalars("dev set/acc")) == 3
    assert [tag for tag in shown.Tags()["scalars"] if tag.startswith("MB on ")]


def test_a_live_view_without_its_package_is_a_user_error(args, monkeypatch):
    monkeypatch.setattr("common.cli.find_spec", lambda _: None)
    with pytest.raises(UserError, match="-m pip install tensorboard"):
        args("--report_to tensorboard")


def test_an_epoch_cut_short_counts_as_its_part(train, model, capsys):
    done = train("--max_steps 4")
    done.finish(model)
    assert [m["epoch"] for m in run_json(done.folder)["metrics"]] == [1, 1.3333]
    printed = capsys.readouterr().out
    assert "after epoch 1: acc" in printed
    assert "after 1.3333 epochs: acc" in printed
    assert "epoch 2" not in printed


def test_the_losses_printed_are_those_of_all_workers(alone):
    """Rank 0 prints a step's when both ranks have written theirs; what is late, at the end."""
    zero, one = (FirstLosses(dataclasses.replace(alone, rank=n, size=2)) for n in (0, 1))
    zero.add(1, 0.5, 3)
    assert list(zero.known()) == []
    one.add(1, 0.9, 1)
    zero.add(2, 0.25, 4)
    assert list(zero.known()) == [(1, "0.600000 (rank 0's share: 0.500000)")]
    assert list(one.known()) == []
    late = threading.Timer(0.1, one.add, (2, 0.75, 4))
    late.start()
    assert list(zero.known(at_end=True)) == [(2, "0.500000 (rank 0's share: 0.250000)")]
    late.join()
    zero.add(6, 0.1, 4)
    assert list(zero.known(at_end=True)) == []


def test_another_rank_prints_nothing_and_writes_only_its_steps(train, model, capsys):
    done = train(rank=3, size=4)
    done.finish(model)
    left = {path.name for path in done.folder.iterdir()}
    assert left == {"steps.rank3.jsonl", "memory.rank3.json"}
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("rank", "size", "left"),
    [
        (0, 1, {"steps.rank0.jsonl", "run.json"}),
        (0, 2, {"steps.rank0.jsonl", "steps.rank1.jsonl", "run.json"}),
        (1, 2, set(STALE)),
    ],
)
def test_what_an_earlier_run_left_is_cleared(args, alone, model, rank, size, left):
    given = args()
    folder = Path(given.output_dir)
    folder.mkdir()
    for name in [*STALE, "my notes.txt"]:
        (folder / name).write_text("stale")
    member = dataclasses.replace(alone, rank=rank, size=size)
    Record(given, member, model, data_of(given), torch.optim.SGD(model.parameters()))
    assert {path.name for path in folder.iterdir()} == {*left, "my notes.txt"}
    assert (folder / f"steps.rank{rank}.jsonl").read_text() == ""
    assert rank or run_json(folder)["task"] == "task1"


def test_a_folder_that_cannot_be_made_is_reported(args, alone, model, tmp_path):
    given = args()
    (tmp_path / "file").touch()
    given.output_dir = str(tmp_path / "file" / "out")
    with pytest.raises(UserError, match=r"--output_dir .*file/out: .*; choose a writable folder"):
        Record(given, alone, model, data_of(given), torch.optim.SGD(model.parameters()))


def test_the_model_is_left_whole_in_place_of_an_older_one(train, model):
    done = train()
    half_saved = done.folder / "saving.part"  # by a run that was killed
    half_saved.mkdir()
    (half_saved / "half a file").touch()
    (done.folder / "model.safetensors").write_text("old")
    done.finish(model)
    assert not (done.folder / "half a file").exists()
    assert not half_saved.exists()
    saved = AutoModelForSequenceClassification.from_pretrained(done.folder, local_files_only=True)
    assert all(a.equal(b) for a, b in zip(saved.parameters(), model.parameters(), strict=True))


def test_a_reader_never_sees_half_a_file(tmp_path):
    path, texts, seen = tmp_path / "run.json", ["a" * 10**6, "b" * 10**6], set()
    write_whole(path, texts[0])
    over = threading.Event()

    def read():
        while not over.is_set():
            seen.add(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(200):
        write_whole(path, texts[n % 2])
    over.set()
    reader.join()
    assert seen <= set(texts)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_write_that_fails_writes_the_old_file(tmp_path):
    path = tmp_path / "run.json"
    write_whole(path, "old")
    with pytest.raises(TypeError):
        write_whole(path, ["no text"])
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_without_training_the_metric_is_all(args, alone, model, capsys):
    data = data_of(args(), "dev", 7)
    done = Record(args(), alone, model, data, torch.optim.SGD(model.parameters()))
    assert list(done.epochs()) == [0]
    assert list(done.steps(data, 0)) == []
    done.end_epoch(0, {"acc": 0.5})
    done.finish(model)
    assert capsys.readouterr().out == "without training: acc 0.5000\n"
    assert run_json(done.folder)["examples"] == {"train": 0, "dev": 7}
    assert not (done.folder / "model.safetensors").exists()
