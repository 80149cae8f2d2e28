"""Known mistakes are found again in the gradients that they give, and named."""

from types import SimpleNamespace

from grading import rubric
from grading.checks.evidence import Evidence
from grading.checks.gradient_causes import explain_gradients
from grading.checks.observation import Forward, Observation, Rank, Step
from grading.plan import Ended
from grading.rubric import BY_HEADING, SECTIONS
from staff.gallery.wrong import WRONG
from tests.workers import ROOT

import numpy as np
import pytest

NAMES = [
    "embeddings.word_embeddings.weight",
    "encoder.query.weight",
    "encoder.query.bias",
    "encoder.dense.weight",
    "encoder.dense.bias",
    "classifier.weight",
    "classifier.bias",
]
RANKS = 4


def clip(gradient, most=2.0):
    return gradient * min(1.0, most / np.linalg.norm(gradient))


def evidence_of(make, forwards=1, late=(), steps=2, after=None, most=1e6):
    """Evidence whose gradients are make(local gradients of a step, rank, gradients kept so far)."""
    random = np.random.default_rng(1)
    local = random.normal(size=(steps, RANKS, len(NAMES), 16))
    local *= np.array([1.0, 2.0, 0.5, 1.5])[:, None, None] * 0.3
    mean = local.mean(axis=1)
    ranks = []
    for rank in range(RANKS):
        one, kept = Rank(names=NAMES, sizes=[100] * len(NAMES)), np.zeros_like(mean[0])
        for step in range(steps):
            kept = make(local[step], rank, kept)
            passes = [Forward([], True, True, 0.5, None)] * forwards
            weights = [rank if after is None else after]
            one.steps.append(Step(passes, [], kept, 0.1, "", None, weights, [], list(late)))
        ranks.append(one)
    reference = {
        "names": NAMES,
        "sizes": [100] * len(NAMES),
        "local": local,
        "mean": mean,
        "norms": np.linalg.norm(local, axis=(2, 3)),
        "norm": np.linalg.norm(mean, axis=(1, 2)),
        "clipped": np.stack([clip(m, most) for m in mean]),
        "by_tensor": by_tensor(mean, most),
        "local_by_tensor": by_tensor(local, most).mean(axis=1),
        "by_value": mean.clip(-most, most),
    }
    setting = SimpleNamespace(max_grad_norm=most)
    return Evidence(setting, Observation(ranks, Ended([0] * RANKS)), reference)


def by_tensor(gradients, most):
    """Every tensor (of the second last axis) clipped by itself."""
    norms = np.linalg.norm(gradients, axis=-1, keepdims=True)
    return gradients * np.minimum(1.0, most / norms)


def left_out(names):
    """Gradients of which the named tensors stay each rank's own."""
    chosen = np.array([any(part in name for part in names) for name in NAMES])[:, None]
    return lambda g, rank, _: np.where(chosen, g[rank], g.mean(axis=0))


BIG = [{"op": "allreduce", "elements": 100 * len(NAMES)}]
MISTAKES = {
    "summed": (lambda g, *_: g.sum(axis=0), {}),
    "divided_twice": (lambda g, *_: g.mean(axis=0) / RANKS, {}),
    "scaled": (lambda g, *_: 0.5 * g.mean(axis=0), {}),
    "clipped_before_average": (lambda g, *_: np.mean([clip(x) for x in g], axis=0), {"most": 2.0}),
    "not_clipped": (lambda g, *_: g.mean(axis=0), {"most": 1.0}),
    "no_sync": (lambda g, rank, _: g[rank], {}),
    "averaged_too_late": (lambda g, rank, _: g[rank], {"late": BIG}),
    "parameters_averaged": (lambda g, rank, _: g[rank], {"late": BIG, "after": 7}),
    "only_root_has_mean": (
        lambda g, rank, _: g.mean(axis=0) if rank == 0 else g[rank],
        {},
    ),
    "rank_left_out": (lambda g, *_: g[:3].sum(axis=0) / 4, {}),
    "gradients_kept": (lambda g, _, kept: kept + g.mean(axis=0), {}),
    "accumulation_unscaled": (lambda g, *_: 2 * g.mean(axis=0), {"forwards": 2}),
    "clipped_per_tensor": (lambda g, *_: by_tensor(g.mean(axis=0), 0.5), {"most": 0.5}),
    "clipped_by_value": (lambda g, *_: g.mean(axis=0).clip(-0.1, 0.1), {"most": 0.1}),
    "tensors_left_out": (left_out(["bias"]), {}),
    "rounded": (lambda g, *_: np.round(g.mean(axis=0), 2), {}),
    "zeroed": (lambda g, *_: np.zeros_like(g[0]), {}),
    "mixed": (lambda g, *_: 0.1 * g[0] + 0.4 * g[1] + 0.2 * g[2] + 0.3 * g[3], {}),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name):
    make, facts = MISTAKES[name]
    evidence = evidence_of(make, **facts)
    deviation = evidence.gradients(1e-4)
    assert deviation.step == (2 if name == "gradients_kept" else 1)
    assert explain_gradients(evidence, deviation).name == name


@pytest.mark.parametrize(
    ("make", "forwards", "call", "cause"),
    [
        (lambda g, *_: g.max(axis=0), 1, {"reduction": "max"}, "wrong_reduction"),
        (lambda g, rank, _: g[rank] / RANKS, 1, {"reduction": "sum"}, "no_sync"),
        (lambda g, rank, _: g[rank] + g.mean(axis=0), 2, {"passes": 1}, "averaged_too_early"),
        (lambda g, *_: 2 * g.mean(axis=0), 2, {"passes": 2}, "accumulation_unscaled"),
    ],
)
def test_collectives_help_to_name_a_mistake(make, forwards, call, cause):
    evidence = evidence_of(make, forwards=forwards)
    for rank in evidence.ranks:
        for step in rank.steps:
            step.collectives = [{**BIG[0], "dtype": "float32", **call}]
    assert explain_gradients(evidence, evidence.gradients(1e-4)).name == cause


def test_right_gradients_are_right():
    assert evidence_of(lambda g, *_: g.mean(axis=0)).gradients(1e-9).step is None


def test_a_mistake_that_nobody_has_named_gets_no_name():
    random = np.random.default_rng(2)
    evidence = evidence_of(lambda g, *_: random.normal(size=g[0].shape))
    assert explain_gradients(evidence, evidence.gradients(1e-4)).name == ""


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (["bias"], "the biases are not synchronized"),
        (["classifier"], "the classifier's tensors are not synchronized"),
        (["encoder.dense.weight"], "encoder.dense.weight is not synchronized"),
    ],
)
def test_tensors_are_described_in_words(parts, words):
    evidence = evidence_of(left_out(parts))
    assert words in explain_gradients(evidence, evidence.gradients(1e-4)).sentence


def test_gradients_that_are_no_numbers_are_wrong():
    evidence = evidence_of(lambda g, *_: np.full_like(g[0], np.nan))
    deviation = evidence.gradients(1e-4)
    assert (deviation.step, deviation.worst) == (1, np.inf)
    explain_gradients(evidence, deviation)


def test_every_cause_points_to_a_section_of_the_handout():
    headings = [
        line.removeprefix("## ")
        for line in (ROOT / rubric.MISTAKES).read_text().splitlines()
        if line.startswith("## ")
    ]
    assert list(BY_HEADING) == headings
    assert {variant.cause for variant in WRONG} - {"todo"} <= set(SECTIONS)
