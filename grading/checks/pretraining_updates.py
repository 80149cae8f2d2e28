"""Checks of task 8's updates: its losses, AdamW's weights, learning rates and loss scaling."""

from itertools import product

from grading.checks.evidence import Evidence
from grading.checks.exit_causes import NOT_SCALED
from grading.checks.graded_task import GradedTask
from grading.checks.pretraining import counted
from grading.checks.rates import explain_ranks_rates
from grading.pretraining_inputs import FACTORS, RATE, RISING, SETTINGS, WARMUP
from grading.results import Cause, Outcome, failed, passed, unknown

import numpy as np

LOSS = 2e-5  # absolute: float32 in another order of sums
EXACT = 1e-6  # of numbers that are computed from the same ones
IN_FLOAT16 = 0.05  # of the gradients' norm
FALLS = 0.2  # of the loss, from the first updates to the last
SHOWN = 5  # updates


def losses(graded: GradedTask) -> Outcome:
    """Both losses of each micro-batch are the reference's, with the weights of that moment."""
    evidence = graded.runs["plain"]
    if evidence.reference is None:
        return unknown(evidence.why)
    worst = 0.0
    for step in range(evidence.steps):
        steps = [rank.steps[step] for rank in evidence.ranks]
        found = [one.losses for each in steps for one in counted(each, SETTINGS["plain"])]
        off = np.abs(np.array(found) - evidence.reference["losses"][step]).max()
        if not off <= LOSS:
            text = "the model, or its weights after the update before, differ from the reference"
            expected = f"both losses of each micro-batch, within {LOSS:g}"
            return failed(expected, f"off by {off:.2g}", f"step {step + 1}", Cause("", text))
        worst = max(worst, off)
    graded.measured["losses"] = worst
    return passed(f"within {worst:.1e} of one process's")


def optimizer(graded: GradedTask) -> Outcome:
    """Under AdamW the weights are the reference's: biases and LayerNorm do not decay."""
    evidence, allowed = graded.runs["adamw"], graded.tolerances["parameters"]
    if evidence.reference is None:
        return unknown(evidence.why)
    deviation = evidence.updates(allowed.most)
    graded.measured["optimizer"] = deviation.worst
    if deviation.step is None:
        text = f"off by at most {deviation.worst:.1e} of the distance they have moved"
        return passed(text, allowed.text)
    own = evidence.reference
    evidence.reference = evidence.details(-1)
    decayed = evidence.updates(allowed.most).step is None
    evidence.reference = own
    cause = Cause("wrong_update", "the gradients are right when the update begins, but it is not")
    if decayed:
        cause = Cause("wrong_decay", "the weight decay applies to biases and LayerNorm, too")
    return failed(
        "the weights after AdamW's updates with the reference's gradients",
        f"weights off by {deviation.at:.2g} of the distance they have moved",
        f"step {deviation.step}, rank {deviation.rank}, {deviation.tensor}",
        cause,
        allowed.text,
    )


def schedule(graded: GradedTask) -> Outcome:
    """The learning rate is that of the configured schedule, in every update."""
    evidence = graded.runs["adamw"]
    different = explain_ranks_rates(evidence)
    rates = [step.rate / RATE for step in evidence.ranks[0].steps]
    wrong = [at for at, factor in FACTORS.items() if at < len(rates) and is_off(rates[at], factor)]
    if not wrong and not different:
        return passed(f"right in updates {', '.join(str(at + 1) for at in FACTORS)}")
    at = wrong[0] if wrong else 0
    expected = f"{FACTORS[at]:.6g} of the learning rate"
    cause = different or explain_schedule(rates)
    return failed(expected, f"{rates[at]:.6g} of it", f"update {at + 1}", cause)


def is_off(found: float, factor: float) -> bool:
    """Whether a factor is not the one that is stored, which has six digits."""
    return not abs(found - factor) <= EXACT * max(1.0, factor)


def explain_schedule(rates: list[float]) -> Cause:
    """The Cause of learning rates that are wrong, in shares of the full one."""
    if max(rates) - min(rates) < EXACT:
        return Cause("unscheduled", "the learning rate does not change: call scheduler.step()")
    for times, before in product((2, 3, 4), (0, 1)):  # and whether it did so before the first
        places = {at // times - before: at for at in FACTORS if at % times == 0}
        known = {place: at for place, at in places.items() if 0 <= place < len(rates)}
        wrong = [at for place, at in known.items() if is_off(rates[place], FACTORS[at])]
        if len(known) > 1 and not wrong:
            text = f"it advances {times} times in each update: once, not with every micro-batch"
            return Cause("rate_per_micro_batch", text)
    if not any(is_off(rates[at], FACTORS[at]) for at in FACTORS if at < WARMUP):
        return Cause("wrong_rate", "the warm-up is right, but not the decay, which begins after it")
    return Cause("wrong_rate", "the warm-up rises in a straight line from 0, in its updates")


def falls(graded: GradedTask) -> Outcome:
    """The loss falls."""
    seen = graded.runs["adamw"].seen
    steps = [step for rank in seen.ranks for step in rank.steps[: seen.steps]]
    of_steps = [np.mean([sum(one.losses or ()) for one in step.forwards]) for step in steps]
    per_rank = np.array(of_steps).reshape(graded.workers, -1)
    first, last = per_rank[:, :SHOWN].mean(), per_rank[:, -SHOWN:].mean()
    if first - last >= FALLS:
        return passed(f"from {first:.3f} to {last:.3f}")
    text = f"in {per_rank.shape[1]} updates it goes from {first:.3f} to {last:.3f}"
    expected = f"a loss that falls by {FALLS:g} or more"
    return failed(expected, text, "all updates", Cause("does_not_fall", text))


def scaling(graded: GradedTask) -> Outcome:
    """In float16 overflows are skipped, and what is clipped are the unscaled gradients."""
    evidence = graded.runs["float16"]
    if evidence.reference is None:
        return unknown(evidence.why)
    for step in range(evidence.steps):
        wanted = evidence.reference["clipped"][step]
        size = np.linalg.norm(wanted)
        for rank in range(evidence.size):
            got = evidence.gradient(step, rank)
            away = np.linalg.norm(got - wanted) / size
            if not away <= IN_FLOAT16:
                return failed(
                    f"the clipped mean of all ranks' gradients, of norm {size:.3g}",
                    f"gradients of norm {np.linalg.norm(got):.3g}, off by {away:.2g} of it",
                    f"update {step + 1}, rank {rank}",
                    explain_scaling(evidence, step, got, wanted),
                )
    rates = [step.rate / RATE for step in evidence.ranks[0].steps][: len(RISING)]
    if any(is_off(rate, factor) for rate, factor in zip(rates, RISING, strict=False)):
        text = "the schedule advances with updates that were skipped: only when weights change"
        got = ", ".join(f"{rate:.3g}" for rate in rates)
        expected = "a learning rate that waits while updates are skipped"
        return failed(expected, got, "its first updates", Cause("schedule_of_skipped", text))
    tries = len(evidence.ranks[0].steps[0].forwards) // SETTINGS["float16"].accumulated
    return passed(f"{tries - 1} updates were skipped before the first")


def explain_scaling(evidence: Evidence, step: int, got: np.ndarray, wanted: np.ndarray) -> Cause:
    """The Cause of wrong gradients in float16."""
    if not np.isfinite(got).all():
        text = "an update is made with gradients that have overflowed: scaler.step skips it"
        return Cause("not_skipped", text)
    one = evidence.ranks[0].steps[step]
    values = [value for value in one.values if value is not None]
    if values and max(map(abs, values)) < 1e3:
        return Cause("loss_not_scaled", NOT_SCALED)
    ratio = np.linalg.norm(got) / np.linalg.norm(wanted)
    if ratio < 1 / 8:
        text = "the gradients are clipped while they are scaled, and divided by the scale only then"
        return Cause("clipped_scaled", f"{text}: unscale them first")
    if ratio > 8:
        text = "the update is made with scaled gradients: unscale them before they are clipped"
        return Cause("not_unscaled", text)
    return Cause("", "neither the order of unscaling and clipping nor a factor explains them")
