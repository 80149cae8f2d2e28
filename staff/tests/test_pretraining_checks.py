"""What the grader sees of task 8: each mistake in a batch, in weights or in LAMB by its cause."""

import json
from types import SimpleNamespace

from common.data.pretraining import masked
from grading.checks import pretraining
from grading.checks.observation import Forward, Observation, Rank, Step
from grading.checks.pretraining_causes import by_weights
from grading.checks.pretraining_functions import STORED, explain_lamb, implied
from grading.checks.pretraining_resumed import difference
from grading.checks.pretraining_updates import explain_schedule
from grading.pretraining_inputs import CUT, FACTORS
from grading.results import FAILED, PASSED
from staff.stored_lamb import expected

import numpy as np
import pytest

CORPUS = "\n".join(
    " " + " ".join(map(str, range(10 * n, 10 * n + 10))) + " " for n in range(1, 303)
)


def test_what_is_stored_are_the_formulas_numbers():
    stored, now = json.loads(STORED.read_text()), expected()
    assert [each[:2] for each in stored["lamb"]] == [each[:2] for each in now["lamb"]]
    for (*_, before), (*_, after) in zip(stored["lamb"], now["lamb"], strict=True):
        assert np.allclose(before, after, rtol=0, atol=1e-9)
    assert stored["factors"] == [[warmup, pytest.approx(each)] for warmup, each in now["factors"]]


def test_our_masks_are_drawn_alike_everywhere():
    ids, labels = masked(np.random.default_rng(3), np.arange(2, 60), 100)
    read = [(int(ids[at]), int(labels[at])) for at in np.flatnonzero(labels >= 0)]
    assert read == [(4, 5), (7, 7), (8, 8), (4, 22), (4, 27), (4, 42), (4, 43), (4, 56)]


def batch(document=2, follows=True, masked=(3,), kind=0):
    """A pass over one pair of the corpus, with masks at these places and a token of padding."""
    first = 10 * document
    other = first + 5 if follows else 10 * (document + 1)
    ids = np.array([[2, *range(first, first + 5), 3, *range(other, other + 5), 3, 0]])
    labels, mask = np.full_like(ids, -100), np.int64(ids > 0)
    for place in masked:
        labels[0, place] = ids[0, place]
        ids[0, place] = (4, 5, ids[0, place])[kind]
    arrays = {"input_ids": ids, "labels": labels, "attention_mask": mask}
    arrays["token_type_ids"] = np.array([[0] * 7 + [1] * 6 + [0]])
    arrays["next_sentence_label"] = np.array([int(not follows)])
    row = tuple(ids[0, :-1].tolist()), (), (int(not follows), tuple(labels[0, :-1].tolist()))
    return Forward([row], True, True, None, None, losses=[1.0, 0.5], arrays=arrays)


def step_of(passes, number=0):
    zeros = np.zeros((1, 16))
    return Step(list(passes), [], zeros, 0.1, "", zeros, [number], moments=(number, number + 1))


def graded(of_ranks):
    """A task whose ranks read these passes, in one step."""
    ranks = [Rank(["w"], [1], start=np.zeros((1, 16)), steps=[step_of(one)]) for one in of_ranks]
    evidence = SimpleNamespace(seen=Observation(ranks, None), ranks=ranks, size=len(ranks))
    return SimpleNamespace(runs={"adamw": evidence}, batch=len(of_ranks[0]), corpus=CORPUS)


def many(**facts):
    """Passes of 50 pairs, of which half follow each other, with masks in the right shares."""
    rng = np.random.default_rng(0)
    places = [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
    found = []
    for at in range(400):
        wanted = {"document": at % 301 + 1, "follows": at % 2 == 0, "kind": (0,) * 8 + (1, 2)}
        wanted |= {"masked": rng.choice(places, 1 + at % 2, replace=False)} | facts
        wanted["kind"] = wanted["kind"][at % 10] if facts.get("kind") is None else facts["kind"]
        found.append(batch(**wanted))
    return found


def cause_of(check, passes):
    found = check(graded([passes]))
    assert found.status in (PASSED, FAILED), found
    return found.cause.name


def test_right_batches_pass():
    for check in (pretraining.masks, pretraining.pairs):
        assert check(graded([many()])).status == PASSED


@pytest.mark.parametrize(
    ("check", "facts", "cause"),
    [
        ("masks", {"kind": 0}, "mask_kinds"),
        ("masks", {"kind": 2}, "mask_kinds"),
        ("masks", {"masked": (3, 4, 5, 8)}, "mask_share"),
        ("masks", {"masked": (1, 2, 3, 4, 5, 7, 8, 9, 10, 11)}, "all_predicted"),
        ("masks", {"masked": (0,)}, "special_masked"),
        ("masks", {"masked": (13,)}, "pad_predicted"),
        ("pairs", {"follows": True}, "pairs_uneven"),
    ],
)
def test_wrong_batches_fail_for_their_cause(check, facts, cause):
    assert cause_of(getattr(pretraining, check), many(**facts)) == cause


def test_wrong_labels_and_repeated_masks_are_seen():
    lost, turned = many(), many()
    for one in lost:
        one.arrays["labels"][:] = -100
    assert cause_of(pretraining.masks, lost) == "labels_missing"
    for one in turned:
        one.arrays["next_sentence_label"] = 1 - one.arrays["next_sentence_label"]
    assert cause_of(pretraining.pairs, turned) == "pairs_mislabeled"
    others = many()
    for one in others:
        labels = one.arrays["labels"]
        labels[labels >= 0] = 99
    assert cause_of(pretraining.pairs, others) == "wrong_labels"
    assert cause_of(pretraining.masks, many() * 2) == "static_masks"


def test_ranks_have_their_own_rows():
    some, others = many()[:4], many()[4:8]
    assert pretraining.own_rows(graded([some, others])).status == PASSED
    assert pretraining.own_rows(graded([some, some])).cause.name == "same_data"
    assert pretraining.own_rows(graded([some, some[:1] + others[1:]])).cause.name == "rows_shared"


MASKED, ROWS = np.array([3.0, 5.0, 9.0, 2.0]), np.full(4, 4.0)
WORDS, PAIRS = MASKED / MASKED.sum(), ROWS / ROWS.sum()


@pytest.mark.parametrize(
    ("weights", "cause"),
    [
        ((2 * WORDS, 2 * PAIRS), "summed"),
        ((WORDS / 2, PAIRS / 2), "divided_twice"),
        ((0.3 * WORDS, 0.3 * PAIRS), "scaled"),
        ((PAIRS, PAIRS), "mean_of_means"),
        ((np.array([3 / 16, 5 / 16, 9 / 22, 2 / 22]), PAIRS), "mean_of_means"),
        ((WORDS, WORDS), "one_weight"),
        ((WORDS, 0 * PAIRS), "loss_left_out"),
        ((0 * WORDS, PAIRS), "loss_left_out"),
        ((WORDS * [1, 1, 1, 0], PAIRS * [1, 1, 1, 0]), "rank_left_out"),
        ((WORDS, PAIRS * [1, 2, 3, 4]), "mixed"),
    ],
)
def test_the_weights_of_micro_batches_say_what_is_wrong(weights, cause):
    assert by_weights(np.array(weights), MASKED, ROWS, 2).name == cause


def test_of_two_explanations_the_nearer_one_is_given():
    masked = np.array([19.0, 20.0, 21.0, 20.0])  # so that the ranks have nearly equally many
    weights = np.array([19 / 39, 20 / 39, 21 / 41, 20 / 41]) / 2
    assert by_weights(np.array([weights, PAIRS]), masked, ROWS, 2).name == "mean_of_means"


def test_a_schedule_in_every_micro_batch_is_told_from_other_ones():
    full = [n / 5 if n < 5 else 0.5 ** ((n - 5) / 10) for n in range(60)]
    assert all(full[at] == pytest.approx(factor, abs=1e-6) for at, factor in FACTORS.items())
    for rates in (full[::2], full[::3], full[3::3]):
        assert explain_schedule(rates).name == "rate_per_micro_batch"
    assert explain_schedule([1.0] * 30).name == "unscheduled"
    late = [n / 5 if n < 5 else 1.0 for n in range(30)]
    assert explain_schedule(late).name == "wrong_rate"


def test_what_differs_after_a_resume_is_named():
    def rank(numbers, first=0):
        return Rank(steps=[step_of([batch(document=n % 6 + 1)], n) for n in numbers[first:]])

    whole = rank(range(7))
    assert difference(whole, rank(range(7), CUT)) is None
    assert difference(whole, rank([*range(6), 9], CUT))[0] == 6
    assert difference(whole, rank(range(3)))[2].name == "resumed_elsewhere"
    assert difference(whole, rank(range(7), 5))[2].name == "resumed_elsewhere"
    for name, value, cause in (
        ("moments", (0, 0), "moments_lost"),
        ("rate", 0.2, "schedule_lost"),
        ("checksums", [-1], "random_states_lost"),
    ):
        rest = rank(range(7), CUT)
        setattr(rest.steps[0], name, value)
        assert difference(whole, rest)[2].name == cause


def test_lamb_is_explained_by_the_trust_ratios_that_it_shows():
    start, after = np.array([1.0, 2.0]), np.array([0.9, 1.7])
    both = np.stack([start, after])
    assert implied(start + 2 * (after - start), both, 0.5) == pytest.approx((1.0, 0.5))
    assert np.isnan(implied(start + np.array([0.1, 0.1]), both, 0.5)[0])
    wide = ("wide", "usual"), ("wide", "large")
    for ratios, cause in (
        (((2.0, 0.5), (0.25, 4.0)), "lamb_inverted"),
        (((1.0, 0.5), (1.0, 4.0)), "lamb_no_ratio"),
        (((3.0, 0.5), (3.0, 4.0)), "lamb_one_norm"),
        (((3.0, 0.5), (2.0, 4.0)), "lamb_wrong"),
        (((np.nan, 0.5), (2.0, 4.0)), "lamb_moments"),
        (((0.5, 0.5), (4.0, 4.0)), "lamb_moments"),
    ):
        assert explain_lamb(dict(zip(wide, ratios, strict=True))).name == cause
    assert explain_lamb({("narrow", "usual"): (3.0, 0.5)}).name == "lamb_unbounded"
    assert explain_lamb({("wide", "zero"): (0.0, 1.0)}).name == "lamb_zero_norm"
