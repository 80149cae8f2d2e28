"""Checks of task 8 where it goes on: resumed in the middle of an epoch, and in phase 2."""

from grading.checks.exit_causes import explain_end
from grading.checks.graded_task import GradedTask
from grading.checks.observation import Observation, Rank
from grading.checks.pretraining_updates import is_off
from grading.pretraining_inputs import AGAIN, CUT, LAMB_RATE
from grading.results import Cause, Outcome, failed, passed, unknown

import numpy as np


def resume(graded: GradedTask) -> Outcome:
    """A run that goes on in the middle of an epoch is, bit for bit, the one that was not cut."""
    again = graded.again.get("resumed")
    if again is None:
        return unknown("the run to be resumed did not end well")
    if again.ended.reason or any(again.ended.codes):
        got, where, cause = explain_end(again, graded.limits)
        return failed("a run that goes on", got, f"--resume, {where}", cause)
    for rank, (whole, rest) in enumerate(
        zip(graded.runs["resumed"].ranks, again.ranks, strict=True)
    ):
        if found := difference(whole, rest):
            step, what, cause = found
            where = f"step {step + 1}, rank {rank}, after a resume from step {CUT}"
            return failed("the run that was not cut", f"other {what}", where, cause)
    return passed(f"bit for bit, from step {CUT} on")


def difference(whole: Rank, rest: Rank) -> tuple[int, str, Cause] | None:
    """(step from 0, what differs, why) between a run and the rest of it that was run again."""
    expected = whole.steps[CUT:]
    if len(rest.steps) != len(expected):
        text = f"it makes {len(rest.steps)} updates, not the {len(expected)} that were left"
        return CUT, "updates", Cause("resumed_elsewhere", text)
    for at, (before, after) in enumerate(zip(expected, rest.steps, strict=True), CUT):
        if before.rows != after.rows:
            text = "it reads other rows or masks: go on where the epoch was cut, not at its start"
            return at, "rows", Cause("resumed_elsewhere", text)
        if before.moments[0] != after.moments[0]:
            return at, "moments", Cause("moments_lost", "the optimizer's moments are others")
        if before.rate != after.rate:
            text = f"the learning rate is {after.rate:.4g}, not {before.rate:.4g}"
            return at, "learning rates", Cause("schedule_lost", text)
        if before.checksums != after.checksums:
            text = "rows, moments and rates are right: restore the random states of dropout, too"
            return at, "weights", Cause("random_states_lost", text)
    return None


def phases(graded: GradedTask) -> Outcome:
    """Phase 2 keeps phase 1's weights and moments, and begins its schedule again."""
    second = graded.again.get("phase 2")
    if second is None:
        return unknown("phase 1 did not end well")
    if second.ended.reason or any(second.ended.codes) or not second.steps:
        got, where, cause = explain_end(second, graded.limits)
        return failed("a run of phase 2", got, f"--phase 2, {where}", cause)
    cause = explain_phase(graded.runs["resumed"].seen, second)
    if cause:
        where = "--phase 2, its first updates"
        return failed("phase 1's weights and moments, and a new warm-up", "others", where, cause)
    return passed("the weights and moments of phase 1, and a new warm-up")


def explain_phase(first: Observation, second: Observation) -> Cause | None:
    """What is wrong with how phase 2 begins; None if nothing is."""
    end, begin = first.ranks[0].steps[-1], second.ranks[0]
    if not np.array_equal(begin.start, end.after):
        return Cause("different_start", "phase 2 does not start from phase 1's weights")
    if begin.steps[0].moments[0] != end.moments[1]:
        return Cause("moments_reset", "the optimizer's moments are not those of phase 1: keep them")
    rates = [step.rate / LAMB_RATE for step in begin.steps]
    if any(is_off(rate, factor) for rate, factor in zip(rates, AGAIN, strict=False)):
        shown = ", ".join(f"{rate:.3g}" for rate in rates)
        return Cause("not_warmed_up", f"the rates are {shown} of the full one: begin again from 0")
    return None
