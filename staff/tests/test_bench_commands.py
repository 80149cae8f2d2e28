"""The benches' commands run, on the tiny BERT and for few steps; nothing is asserted on timing."""

import re
from argparse import Namespace

from common.models.tiny import tiny_model, tiny_tokenizer
from staff.timing import large_task, padding, peers
from tests.workers import sample

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a checkpoint, `model`, and rows, `data`."""
    folder = tmp_path_factory.mktemp("bench")
    tiny_model(2).save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")
    sample(folder / "data")
    return folder


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("way", peers.WAYS)
def test_each_peer_trains(place, way, workers):
    if way == "accelerate":
        pytest.importorskip("accelerate")
    args = Namespace(data_dir=str(place / "data"), model_name_or_path=str(place / "model"))
    args.output_dir, args.steps = place / "out", 2
    seconds, peak = peers.measure(way, workers, args, ["--max_seq_length", "16"])
    assert seconds > 0
    assert peak > 10**8


def test_padded_and_unpadded_losses_are_compared(place, capsys):
    flags = f"--data_dir {place / 'data'} --output_dir {place / 'padding'} --tasks 1,2b,overlap"
    assert padding.main([*flags.split(), "--steps", "3", "--max_seq_length", "32"]) == 0
    rows = re.findall(r"^\| (\S.*?) \| 3 \| (\S+) \|", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _ in rows] == ["1", "2(b)", "2(b), further"]
    assert all(float(gap) < 1e-6 for _, gap in rows)


def test_a_large_task_is_prepared_in_little_memory(capsys):
    assert large_task.main(["--rows", "60000", "--length", "64"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("60,000 rows: ")
    assert re.search(r"most memory while building \d+ MB, \d+\.\d+ times$", printed.strip())
