"""A task of one's own: digits, by the same loop, on one worker and on uneven ones."""

import gzip
import json
import struct
from types import SimpleNamespace

from common.data.idx import find_mnist
from common.errors import UserError
from task5 import digits
from tests.workers import ROOT, Crew

import numpy as np
import pytest
import torch


def write_mnist(folder, name, images, labels):
    """Write arrays as MNIST's files, the labels compressed."""
    head = struct.pack(">HBBIII", 0, 8, 3, *images.shape)
    (folder / f"{name}-images-idx3-ubyte").write_bytes(head + images.tobytes())
    head = struct.pack(">HBBI", 0, 8, 1, len(labels))
    path = folder / f"{name}-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(head + labels.tobytes()))


def test_the_script_is_short():
    assert len((ROOT / "task5" / "digits.py").read_text().splitlines()) <= 40


def test_mnists_files_are_read_where_there_are_any(tmp_path):
    images = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)
    write_mnist(tmp_path, "train", images, np.array([3, 1, 4], np.uint8))
    args = SimpleNamespace(data_dir=str(tmp_path))
    rows = digits.load_split(args, "train")
    assert [label for _, label in rows] == [3, 1, 4]
    assert (rows[2][0][0] * 256).tolist() == images[2].tolist()
    assert len(digits.load_split(args, "dev")) == 397  # scikit-learn's, as there is no t10k file
    batch = digits.collate(rows)
    assert digits.OWN_TASKS["digits"].build_model()(batch["x"]).shape == (3, 10)


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"<html>not found</html>")
    with pytest.raises(UserError, match="train-images-idx3-ubyte is not a valid IDX file"):
        find_mnist(str(tmp_path), "train")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_digits_are_learned_alike_by_one_worker_and_by_four_uneven_ones(tmp_path):
    flags = "--do_train --do_eval --learning_rate 1.0 --num_train_epochs 2 --no_cuda --timeout 60"
    losses, scores = [], []
    for sizes in ("64", "24,20,12,8"):
        workers = sizes.count(",") + 1
        with Crew(tmp_path / f"crew{workers}") as crew:
            for rank in range(workers):
                own = f"{flags} --output_dir {crew.output} "
                own += f"--batch_sizes {sizes}" if workers > 1 else "--per_gpu_train_batch_size 64"
                own += f" --master_ip 127.0.0.1 --master_port {crew.port}"
                own += f" --world_size {workers} --local_rank {rank}"
                crew.start_file(ROOT / "task5" / "digits.py", rank, own)
            assert [worker.end() for worker in crew.workers] == [0] * workers
            lines = [
                [json.loads(line) for line in file.read_text().splitlines()]
                for file in sorted(crew.output.glob("steps.rank*.jsonl"))
            ]
            assert len(lines) == workers
            losses.append(
                [
                    sum(one["loss"] * one["examples"] for one in step)
                    / sum(one["examples"] for one in step)
                    for step in zip(*lines, strict=True)
                ]
            )
            scores.append(json.loads((crew.output / "run.json").read_text())["metrics"][-1]["acc"])
            assert list(crew.output.glob("checkpoint-*/complete"))
    one, four = (torch.tensor(each) for each in losses)
    assert (one - four).abs().max() < 1e-4  # Adadelta divides by tiny numbers at first
    assert scores[0] == pytest.approx(scores[1], abs=0.02)
    assert min(scores) > 0.5
