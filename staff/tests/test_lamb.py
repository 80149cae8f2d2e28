"""LAMB against its paper's formula, the norms that it needs, and the learning-rate schedules."""

import math

from common.models.lamb import Lamb, trust_ratio
from common.models.schedules import (
    constant,
    linear,
    polynomial,
    scheduler_of,
    warmup_linear_decay_exp,
)
from common.norms import clip_grad_norm_, norms

import numpy as np
import pytest
import torch

OPTIONS = {"lr": 4e-2, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.01}


def reference(weight, gradients, lowest, highest, options):
    """The formula in float64: the weight after each gradient, and the trust ratios."""
    x, (b1, b2) = weight.astype(np.float64), options["betas"]
    m, v, after, ratios = np.zeros_like(x), np.zeros_like(x), [], []
    for t, g in enumerate(gradients, 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        u = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + options["eps"])
        u = u + options["weight_decay"] * x
        both = np.linalg.norm(x), np.linalg.norm(u)
        ratios.append(min(highest, max(lowest, both[0] / both[1])) if all(both) else 1.0)
        x = x - options["lr"] * ratios[-1] * u
        after.append(x)
    return after, ratios


@pytest.mark.parametrize("bounds", [(0.01, 10.0), (0.08, 0.5), (2.0, 3.0), (1.0, 1.0)])
@pytest.mark.parametrize("start", ["normal", "zero weight", "zero gradient"])
def test_lamb_is_the_papers_formula(bounds, start):
    drawn = np.random.default_rng(0)
    shapes = [(), (7,), (5, 3), (3, 4, 2)]
    weights = [np.asarray(drawn.normal(size=shape)) * (start != "zero weight") for shape in shapes]
    gradients = [
        [np.asarray(drawn.normal(size=shape)) * (start != "zero gradient") for _ in range(6)]
        for shape in shapes
    ]
    options = OPTIONS | ({"weight_decay": 0.0} if start == "zero gradient" else {})
    held = [torch.nn.Parameter(torch.tensor(weight, dtype=torch.float32)) for weight in weights]
    named = [(f"weight {number}", p) for number, p in enumerate(held)]
    optimizer = Lamb(named, min_coeff=bounds[0], max_coeff=bounds[1], **options)
    expected = [reference(w, g, *bounds, options) for w, g in zip(weights, gradients, strict=True)]
    for step in range(6):
        for p, each in zip(held, gradients, strict=True):
            p.grad = torch.tensor(each[step], dtype=torch.float32)
        optimizer.step()
        for number, (p, (after, ratios)) in enumerate(zip(held, expected, strict=True)):
            assert np.abs(p.detach().numpy() - after[step]).max() < 1e-6 * (1 + bounds[1])
            ratio = optimizer.trust_ratios()[f"weight {number}"]
            assert ratio == pytest.approx(ratios[step], rel=1e-5)


@pytest.mark.parametrize("bias_correction", [True, False])
def test_with_both_bounds_1_it_is_adamw(bias_correction):
    torch.manual_seed(0)
    start, gradients = torch.randn(20, 5), torch.randn(8, 20, 5)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    fixed = {"min_coeff": 1.0, "max_coeff": 1.0, "bias_correction": bias_correction}
    optimizers = Lamb([ours], **OPTIONS, **fixed), torch.optim.AdamW([theirs], **OPTIONS)
    for gradient in gradients:
        for p, optimizer in zip((ours, theirs), optimizers, strict=True):
            p.grad = gradient.clone()
            optimizer.step()
    assert torch.allclose(ours, theirs, atol=1e-6) is bias_correction


def test_lamb_goes_on_from_its_state_bit_for_bit():
    torch.manual_seed(0)
    start, gradients = torch.randn(20, 5), torch.randn(8, 20, 5)

    def trained(cut):
        p = torch.nn.Parameter(start.clone())
        optimizer = Lamb([p], **OPTIONS)
        for number, gradient in enumerate(gradients):
            if number == cut:
                state = optimizer.state_dict()
                optimizer = Lamb([p], lr=1.0)
                optimizer.load_state_dict(state)
            p.grad = gradient
            optimizer.step()
        return p.detach()

    assert torch.equal(trained(None), trained(4))


def test_a_zero_weight_or_update_has_a_ratio_of_1():
    ones, zeros = torch.ones(3), torch.zeros(3)
    for weight, update in ((zeros, ones), (ones, zeros), (zeros, zeros)):
        assert trust_ratio(weight, update, 2.0, 3.0) == 1.0


def test_norms_are_right_for_large_tensors():
    """torch's is wrong by 1e-4 and more; a tensor as large as BERT's word embeddings by 1e-3."""
    torch.manual_seed(0)
    tensors = [torch.rand(4_000_003), torch.rand(3, 5).T, torch.tensor(-2.0), torch.zeros(4)]
    for ours, tensor in zip(norms(tensors), tensors, strict=True):
        assert ours.item() == pytest.approx(tensor.double().norm().item(), rel=1e-6)
    held = [torch.nn.Parameter(tensor) for tensor in tensors]
    for p in held:
        p.grad = p.detach().clone()
    before = clip_grad_norm_([*held, torch.nn.Parameter(torch.ones(1))], 2.0)
    assert before.item() == pytest.approx(
        math.hypot(*(tensor.double().norm().item() for tensor in tensors)), rel=1e-6
    )
    after = math.hypot(*(p.grad.double().norm().item() for p in held))
    assert after == pytest.approx(2.0, rel=1e-5)


def test_schedules_at_given_steps():
    line = linear(10, 110)
    assert [line(n) for n in (0, 5, 10, 60, 110, 999)] == pytest.approx([0, 0.5, 1, 0.5, 0, 0])
    curve = polynomial(10, 110, 0.5)
    assert [curve(n) for n in (0, 5, 10, 85, 110)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    flat = constant(10, 110)
    assert [flat(n) for n in (0, 5, 10, 999)] == pytest.approx([0, 0.5, 1, 1])
    early = constant(10, 110, "log")
    assert early(5) == pytest.approx(math.log(6) / math.log(10))
    # phase 1 of the tutorial: 187,000 updates, 2 % warm-up, 0.9 for every 1,000
    exp = warmup_linear_decay_exp(3740, 187_000, 0.9, 1000)
    expected = [0, 0.5, 1, 0.9, 0.9**0.5, 0.9**20]
    assert [exp(n) for n in (0, 1870, 3740, 4740, 4240, 23_740)] == pytest.approx(expected)
    at_once = warmup_linear_decay_exp(0, 100, 0.5, 10)
    assert [at_once(n) for n in (0, 10, 20)] == pytest.approx([1, 0.5, 0.25])


def test_a_scheduler_moves_between_the_lowest_rate_and_the_groups_own():
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": lr} for lr in (1.0, 0.5)]
    optimizer = torch.optim.SGD(groups)
    scheduler = scheduler_of(optimizer, linear(2, 4), lowest=0.1)
    rates = []
    for _ in range(5):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    first, second = zip(*rates, strict=True)
    assert first == pytest.approx([0.1, 0.55, 1.0, 0.55, 0.1])
    assert second == pytest.approx([0.1, 0.3, 0.5, 0.3, 0.1])
