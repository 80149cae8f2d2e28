"""Checks of what a submission prints or writes: losses, times, metrics."""

import re
from collections.abc import Iterable
from itertools import chain, pairwise
from statistics import mean

from grading.checks.evaluated import scored, wrong_evaluation
from grading.checks.evidence import Evidence
from grading.checks.graded_task import GradedTask
from grading.checks.numbers_in_text import among_few, in_order, numbers, sources
from grading.checks.observation import Evaluation, Rank
from grading.results import Cause, Outcome, failed, passed, unknown

OUTPUT = "rank 0's output, and the files it wrote"
TIMES = re.compile(r"mean|average|avg|per.?(?:iter|step|batch)", re.I)


# Other figures than the metric of the whole dev set: (name, cause, what they are).
OTHER_METRICS = (
    (
        "rank 0's own share",
        "shard_evaluated",
        "the metric printed is that of rank 0's share of the dev set alone",
    ),
    (
        "with rows that are scored twice",
        "scored_twice",
        "rows that fill up the ranks' shares are scored twice: cut them off before scoring",
    ),
    (
        "the mean of the ranks' shares",
        "shard_evaluated",
        "the metric printed is the mean of the ranks' metrics, whose shares have different sizes: "
        "add up the numbers of right predictions and of rows",
    ),
    (
        "with rows of the training set",
        "train_rows_evaluated",
        "rows of train.tsv are part of the metric printed",
    ),
)


def printed(graded: GradedTask) -> Outcome:
    """The losses of the first five minibatches are reported."""
    ranks = graded.runs["adamw"].ranks
    count = min(5, graded.runs["adamw"].seen.steps)
    losses = [[rank.steps[step].loss for step in range(count)] for rank in ranks]
    if any(value is None for one in losses for value in one):
        return unknown("no loss could be read from the model's output or from backward")
    shares = graded.runs["adamw"].seen.shares
    of_steps = enumerate(zip(*losses, strict=True))
    wanted = [losses[0], [float(shares(step) @ of_step) for step, of_step in of_steps]]
    texts = sources(graded, "adamw")
    best = max(in_order(values, text, coarsest=5e-4) for values in wanted for text in texts)
    seen = [step.loss for rank in ranks for step in rank.steps if step.loss is not None]
    seen += wanted[1]
    few = any(among_few(values, text, benign=seen) for values in wanted for text in texts)
    if best == count and few:
        return passed("the losses of the first five minibatches")
    if best == count:
        return failed_guesses("the losses of the first five minibatches")
    return failed(
        ", ".join(f"{value:.6f}" for value in losses[0]),
        f"the first {best} of them, in this order" if best else "none of them",
        OUTPUT,
        Cause(
            "not_printed",
            "print the loss of each of the first five minibatches as the model returns it, with at "
            "least three decimals",
        ),
    )


def failed_guesses(expected: str) -> Outcome:
    """The Outcome of a text that has the right numbers, but only among all the others."""
    cause = Cause("guessed", "print these numbers, not all that they may be")
    return failed(expected, "lists of numbers that hold these among many others", OUTPUT, cause)


def timing(graded: GradedTask) -> Outcome:
    """The mean time of an iteration is reported, over 40 or more of them, the first discarded."""
    evidence = graded.runs["adamw"]
    count, pause = len(evidence.ranks[0].steps), evidence.setting.pause
    if count < 41:
        return unknown(f"only {count} iterations were seen")
    typical, longest = mean_times(evidence.ranks[0])
    extra = pause / count  # what the first iteration adds to the mean, if it is counted
    found = reported_times(graded)
    if any(0.2 * typical <= seconds <= longest + 0.4 * extra for seconds in found):
        return passed(f"a mean that agrees with the grader's {typical:.3f} s")
    counted = [s for s in found if longest + 0.4 * extra < s <= longest + 2.5 * extra]
    expected = f"a mean near {typical:.3f} s (iterations 2 to {count}, as the grader measured)"
    if counted:
        cause = Cause(
            "first_iteration_timed",
            f"the first iteration took {pause:g} s longer than the others and is part of your "
            "mean: discard it",
        )
        return failed(expected, f"{counted[0]:.3f} s", OUTPUT, cause)
    return failed(
        expected,
        "no matching number in any line that mentions a mean or a time per iteration",
        OUTPUT,
        Cause("not_timed", "print the mean time of an iteration in seconds, the first discarded"),
    )


def mean_times(rank: Rank) -> tuple[float, float]:
    """The mean seconds of every iteration but the first, at least and at most.

    They differ where an evaluation ran before: what is between its last pass and the next one of
    training (the metric, a wait for the other ranks, the next batch) may be part of an iteration.
    """
    evaluated = {one.after: one.left for one in rank.evaluations}
    least, most = [], []
    for number, (before, after) in enumerate(pairwise(rank.steps), 1):
        began = before.seconds
        if number in evaluated and after.forwards:
            began = after.forwards[0].entered
        least.append(after.seconds - began)
        most.append(after.seconds - evaluated.get(number, began))
    return mean(least), mean(most)


def reported_times(graded: GradedTask) -> list[float]:
    """The numbers in lines that mention a mean, in seconds; where the unit is open, in both."""
    found = []
    for line in chain.from_iterable(text.splitlines() for text in sources(graded, "adamw")):
        if TIMES.search(line):
            values = [value for value, _ in numbers(line)]
            found += values
            if re.search(r"\bms\b|milli", line):
                found += [value / 1000 for value in values]
    return found


def metric(graded: GradedTask) -> Outcome:
    """After every epoch the metric of the whole dev set is reported."""
    evidence, rows = graded.runs["adamw"], graded.rows("adamw", "dev")
    epochs = epochs_of(evidence)
    if len(epochs) < evidence.setting.epochs:
        return failed(
            f"an evaluation after each of {evidence.setting.epochs} epochs",
            f"{len(epochs)} of them (after steps {', '.join(map(str, epochs)) or 'none'})",
            "forward passes without gradients",
            Cause("metric_missing", "evaluate on the dev set after every epoch, under no_grad"),
        )
    wrong = wrong_evaluation(graded, epochs)
    if wrong:
        return wrong
    whole, others = [], []
    for found in epochs.values():
        parts = [scored(one, graded) for one in found]
        together = dict(pair for part in parts for pair in part.items())
        if len(together) < rows:
            return failed(
                f"all {rows} rows of the dev set",
                f"{len(together)} of them",
                "the rows of all ranks together",
                Cause("shard_evaluated", "no rank evaluates the rest of the dev set"),
            )
        whole.append(mean(together.values()))
        both = {k: v for one in found for k, v in scored(one, graded, trained=True).items()}
        figures = other_metrics([list(part.values()) for part in parts if part])
        others.append((*figures, mean(both.values())))
    return reported_metric(graded, whole, others)


def reported_metric(graded: GradedTask, whole: list[float], others: list[tuple]) -> Outcome:
    """Whether the metrics of all epochs are reported, or which OTHER_METRICS are."""
    texts, expected = sources(graded, "adamw"), f"accuracy {decimals(whole)}"
    steps = graded.runs["adamw"].ranks[0].steps
    losses = [step.loss for step in steps if step.loss is not None]
    for scale in (1, 100):
        values = [value * scale for value in whole]
        coarsest = 0.005 if scale == 1 else 0.05  # two decimals, or one of a percentage
        told = [t for t in texts if in_order(values, t, 6e-5 * scale, coarsest) == len(whole)]
        if any(among_few(values, text, 6e-5 * scale, losses) for text in told):
            return passed(expected)
        if told:
            return failed_guesses(expected)
    for (name, cause, why), values in zip(OTHER_METRICS, zip(*others, strict=True), strict=True):
        if any(in_order(list(values), text, 6e-5) == len(values) for text in texts):
            got = f"{name}: {decimals(values)}"
            return failed(expected, got, OUTPUT, Cause(cause, why))
    cause = Cause("not_printed", "print the metric of the whole dev set after every epoch")
    return failed(expected, "other numbers", OUTPUT, cause)


def other_metrics(parts: list[list[float]]) -> tuple[float, float, float]:
    """The figures of OTHER_METRICS, of the ranks' rows: 1.0 for each that was predicted right."""
    every = [value for part in parts for value in part]
    return mean(parts[0]), mean(every), mean(map(mean, parts))


def decimals(values: Iterable[float]) -> str:
    """Numbers with four decimals."""
    return ", ".join(f"{value:.4f}" for value in values)


def epochs_of(evidence: Evidence) -> dict[int, list[Evaluation]]:
    """Update -> the ranks' evaluations after it, in order."""
    found = {}
    for rank in evidence.ranks:
        for one in rank.evaluations:
            if one.after:
                found.setdefault(one.after, []).append(one)
    return found
