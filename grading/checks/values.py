"""Checks of numbers against the reference: first weights, losses, gradients, later weights."""

from grading.checks.gradient_causes import explain_gradients
from grading.results import Cause, failed, not_run, passed, unknown

import numpy as np


def start(task):
    """Every rank starts from the checkpoint's weights."""
    evidence = task.runs["plain"]
    if evidence.reference is None:
        return unknown(evidence.why)
    missing = [
        n
        for n, at in zip(evidence.reference["names"], evidence.places[0], strict=True)
        if at is None
    ]
    if missing:
        return unknown(f"the model has no tensor that could be the checkpoint's {missing[0]}")
    apart = evidence.start()
    if apart.step is None:
        return passed("the checkpoint's weights, on every rank")
    return failed(
        "the weights of the checkpoint that --model_name_or_path names",
        f"weights {apart.at:.2g} (relative) away from them",
        f"before step 1, rank {apart.rank}, {apart.tensor}",
        Cause(
            "different_start",
            "the model was not loaded from the checkpoint, or was changed before the first step, "
            "or not alike on every rank (a new layer drawn from a seed of its own?)",
        ),
    )


def loss(task):
    """Each rank's loss, at each step, is the reference's for the same rows."""
    evidence, allowed = task.runs["plain"], task.allowed("loss")
    if evidence.reference is None:
        return unknown(evidence.why)
    apart = evidence.losses(allowed.most)
    if apart is None:
        return unknown("neither the model nor backward was given a loss that could be read")
    task.measured["loss"] = apart.worst
    if apart.step is None:
        return passed(f"at most {apart.worst:.1e} from the reference", allowed.text)
    gradients = evidence.gradients(task.allowed("gradients").most)
    if gradients.step is not None and gradients.step < apart.step:
        return not_run(
            f"not run because {task.name}/gradients failed: the losses are equal until step "
            f"{apart.step}, where the first wrong update shows"
        )
    cause = explain_loss(evidence, apart)
    one = evidence.ranks[apart.rank].steps[apart.step - 1]
    wanted = evidence.reference["loss"][apart.step - 1][apart.rank]
    where = f"step {apart.step}, rank {apart.rank}"
    return failed(f"{wanted:.6f}", f"{one.loss:.6f}", where, cause, allowed.text)


def explain_loss(evidence, apart):
    """The Cause of a loss that is wrong although the weights are right."""
    one = evidence.ranks[apart.rank].steps[apart.step - 1]
    wanted = evidence.reference["loss"][apart.step - 1][apart.rank]
    if not all(forward.masked for forward in one.forwards):
        return Cause(
            "no_mask",
            "the model was given no attention mask that hides the padding, so that it reads "
            "padding as words",
        )
    ratio = one.loss / wanted if wanted else np.inf
    if np.isfinite(ratio) and abs(ratio - round(ratio, 2)) < 1e-4 and abs(ratio - 1) > 0.01:
        return Cause("loss_scaled", f"the loss is {ratio:.2f} times the mean over the batch")
    return Cause("", "the model, or what it is given beside the rows, differs from the reference")


def gradients(task):
    """The gradients at each update are the reference's, on every rank, with nothing clipped."""
    return compared_gradients(task, "plain", "gradients")


def clipping(task):
    """The same with clipping active: the average is clipped, and not clipped ones averaged."""
    return compared_gradients(task, "clipped", "clipping")


def compared_gradients(task, setting, name):
    evidence, allowed = task.runs[setting], task.allowed(name)
    if evidence.reference is None:
        return unknown(evidence.why)
    apart = evidence.gradients(allowed.most)
    task.measured[name] = apart.worst
    losses = evidence.losses(task.allowed("loss").most)
    if losses and losses.step and apart.step and losses.step <= apart.step:
        return not_run(f"not run because {task.name}/loss failed, at step {losses.step}")
    if apart.step is None:
        return passed(f"at most {apart.worst:.1e} (relative) from the reference", allowed.text)
    step, rank = apart.step - 1, apart.rank
    got = np.linalg.norm(evidence.gradient(step, rank))
    wanted = np.linalg.norm(evidence.reference["clipped"][step])
    return failed(
        f"the clipped mean of all ranks' gradients, of norm {wanted:.6g}",
        f"gradients of norm {got:.6g}, {apart.at:.2g} (relative) away from it",
        f"step {apart.step}, rank {rank}, {apart.tensor}",
        explain_gradients(evidence, apart),
        allowed.text,
    )


def identical(task):
    """After every update all ranks have the same weights."""
    allowed = task.allowed("identical")
    for setting, evidence in task.runs.items():
        apart = evidence.between_ranks(allowed.most)
        task.measured["identical"] = max(task.measured.get("identical", 0.0), apart.worst)
        if apart.step is None:
            continue
        cause = Cause(
            "ranks_drift",
            "the ranks make different updates: their gradients are not the same when "
            "optimizer.step() runs",
        )
        if setting == "plain" and evidence.reference is not None:
            gradients = evidence.gradients(task.allowed("gradients").most)
            cause = explain_gradients(evidence, gradients) if gradients.step else cause
        return failed(
            "the same weights on all ranks",
            f"rank {apart.rank}'s are {apart.at:.2g} (of the way gone) from rank 0's",
            f"setting {setting}, step {apart.step}, rank {apart.rank}, {apart.tensor}",
            cause,
            allowed.text,
        )
    return passed("the same weights on all ranks, after every step")


def parameters(task):
    """After every update by the submission's own AdamW the weights are the reference's."""
    evidence, allowed = task.runs["adamw"], task.allowed("parameters")
    if evidence.reference is None:
        return unknown(evidence.why)
    rates = [step.rate for step in evidence.ranks[0].steps]
    cause = explain_rates(rates, task.learning_rate)
    if cause:
        return failed(
            f"a learning rate that falls from {task.learning_rate:g} to 0, linearly",
            ", ".join(f"{rate:.3g}" for rate in rates[:4]) + f", ..., {rates[-1]:.3g}",
            "the optimizer's learning rate at each step",
            cause,
        )
    apart = evidence.updates(allowed.most)
    task.measured["parameters"] = apart.worst
    if apart.step is None:
        return passed(f"at most {apart.worst:.1e} (of the way gone) away", allowed.text)
    return failed(
        "the weights that AdamW makes of the reference's gradients",
        f"weights {apart.at:.2g} (of the way gone) away from them",
        f"step {apart.step}, rank {apart.rank}, {apart.tensor}",
        Cause(
            "wrong_update",
            "the gradients are right when the update begins, and the weights after it are not: "
            "another optimizer, weight decay, or weights that are changed beside it",
        ),
        allowed.text,
    )


def explain_rates(rates, first):
    """A Cause if the learning rates do not fall linearly from `first` to 0; else None."""
    steps = np.arange(len(rates))
    for shift in (0, 1):  # scheduler.step() after or, as in 2019, before optimizer.step()
        line = first * (1 - (steps + shift) / len(rates))
        if np.abs(np.array(rates) - line).max() <= 0.02 * first:
            return None
    if max(rates) - min(rates) < 1e-3 * first:
        return Cause("unscheduled", "the learning rate stays as it is: call scheduler.step()")
    return Cause("wrong_rate", "the schedule has another length, or steps more than once an update")
