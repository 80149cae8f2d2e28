"""The reference and its sketches: four ranks' rows are one batch's, and distances are kept."""

from grading import inputs, rubric
from grading.checks.replayed import batch_of
from grading.worker.sketch import WIDTH, checksum, pack, sketch, unpack
from staff import reference

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The inputs' folder, and rows of its data: (token ids, segments, label)."""
    folder = tmp_path_factory.mktemp("material")
    labels = inputs.build(folder)["short"]
    return folder, [(ids, (0,) * len(ids), label) for ids, label in labels.items()]


@pytest.mark.parametrize("most", [1e6, 0.1])
def test_four_ranks_train_as_one_process_on_all_their_rows(made, most):
    folder, rows = made
    steps = [[rows[at + 4 * r : at + 4 * r + 4] for r in range(4)] for at in (0, 16, 32)]
    batches = [[batch_of(of_rank) for of_rank in ranks] for ranks in steps]
    found = reference.replay(folder / "model", batches, most, learning_rate=0.05)

    torch.set_num_threads(1)
    twin = BertForSequenceClassification.from_pretrained(folder / "model").train()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.05)
    for step, ranks in enumerate(steps):
        whole = batch_of([row for of_rank in ranks for row in of_rank])
        loss = twin(**{name: torch.from_numpy(values) for name, values in whole.items()}).loss
        assert loss.item() == pytest.approx(np.mean(found["loss"][step]), abs=1e-6)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), most)
        optimizer.step()
        gradients = np.stack([sketch(p.grad) for p in twin.parameters()])
        weights = np.stack([sketch(p) for p in twin.parameters()])
        scale = np.linalg.norm(gradients)
        assert np.linalg.norm(gradients - found["clipped"][step]) < 1e-5 * scale
        assert np.linalg.norm(weights - found["weights"][step]) < 1e-6 * np.linalg.norm(weights)


def test_a_sketch_keeps_sums_and_distances():
    generator = torch.Generator().manual_seed(1)
    one, other = (torch.randn(1000, 7, generator=generator) for _ in range(2))
    assert sketch(one).shape == (WIDTH,)
    assert np.allclose(sketch(2 * one - other), 2 * sketch(one) - sketch(other), atol=1e-4)
    near = one + 1e-3 * other
    found = np.linalg.norm(sketch(near) - sketch(one))
    assert found == pytest.approx((near - one).norm().item(), rel=0.7)
    assert sketch(torch.tensor(3.0)).any()


def test_a_checksum_sees_one_bit():
    one = torch.zeros(100)
    other = one.clone()
    other[50] = 1e-45
    assert checksum(one) == checksum(one.clone()) != checksum(other)


@pytest.mark.parametrize("packed", [["|O8", [1], ""], ["<f8", [3], "AAAA"], 7, ["<f8", [1]]])
def test_only_arrays_of_numbers_are_unpacked(packed):
    array = np.arange(6.0).reshape(2, 3)
    assert (unpack(pack(array)) == array).all()
    with pytest.raises((ValueError, TypeError)):
        unpack(packed)


def test_tolerances_lie_between_right_and_wrong():
    for measure, allowed in rubric.load_tolerances().items():
        assert allowed.noise < allowed.most < allowed.wrong, measure
        assert f"{allowed.most:.1e}" in allowed.text
