"""Checks of what a submission prints or leaves: losses, times, metrics, bytes."""

import json
import re
from itertools import pairwise
from statistics import mean

from grading.checks.observation import BOOKKEEPING
from grading.results import Cause, failed, passed, unknown

NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
TIMES = re.compile(r"mean|average|avg|per.?(?:iter|step|batch)", re.I)
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
BAR = re.compile(r"\d+%\|[^\r\n]*?\]")  # tqdm's; a log's line may follow it


def numbers(text):
    """(value, half of its last printed digit) of each number in a text."""
    for found in NUMBER.finditer(text):
        digits = found.group()
        mantissa, _, power = digits.lower().partition("e")
        places = len(mantissa.partition(".")[2])
        yield float(digits), 0.5 * 10.0 ** (int(power or 0) - places)


def in_order(values, text, slack=2e-6):
    """How many of the values stand in the text, one after the other, as rounded as they are."""
    found = 0
    for value, half in numbers(text):
        if found < len(values) and half < 0.01 and abs(value - values[found]) <= half + slack:
            found += 1
    return found


def sources(task, setting):
    """The texts in which rank 0, or its files, may have told something; no progress bars."""
    evidence = task.runs[setting]
    texts = (evidence.ranks[0].out, evidence.ranks[0].err, evidence.seen.left)
    return [BAR.sub("\n", text) for text in texts]


def printed(task):
    """The losses of the first five minibatches are told, as they were."""
    ranks = task.runs["adamw"].ranks
    count = min(5, len(ranks[0].steps))
    losses = [[rank.steps[step].loss for step in range(count)] for rank in ranks]
    if any(value is None for one in losses for value in one):
        return unknown("neither the model nor backward was given a loss that could be read")
    wanted = [losses[0], [mean(of_step) for of_step in zip(*losses, strict=True)]]
    best = max(in_order(values, text) for values in wanted for text in sources(task, "adamw"))
    if best == count:
        return passed("the losses of the first five minibatches")
    return failed(
        ", ".join(f"{value:.6f}" for value in losses[0]),
        f"the first {best} of them, in this order" if best else "none of them",
        "rank 0's output, and the files it left",
        Cause(
            "not_printed",
            "print the loss of each of the first five minibatches, with at least three decimals, "
            "as the model gave it",
        ),
    )


def timing(task):
    """The mean time of an iteration is told, over 40 or more of them, the first discarded."""
    evidence = task.runs["adamw"]
    rank, pause = evidence.ranks[0], evidence.setting.pause
    clock = [step.seconds for step in rank.steps]
    if len(clock) < 41:
        return unknown(f"only {len(clock)} iterations were seen")
    evaluated = {one.after for one in rank.evaluations}  # what follows begins when it is over
    begins = [
        after.forwards[0].entered if number in evaluated and after.forwards else before.seconds
        for number, (before, after) in enumerate(pairwise(rank.steps), 1)
    ]
    typical = mean(end - begin for begin, end in zip(begins, clock[1:], strict=True))
    extra = pause / len(clock)  # what the first iteration adds to the mean, if it is counted
    found = [
        seconds
        for text in sources(task, "adamw")
        for line in text.splitlines()
        if TIMES.search(line)
        for value, _ in numbers(line)
        for seconds in ((value, value / 1000) if re.search(r"\bms\b|milli", line) else (value,))
    ]
    if any(0.2 * typical <= seconds <= typical + 0.4 * extra for seconds in found):
        return passed(f"a mean that fits {typical:.3f} s, as seen from outside")
    counted = [s for s in found if typical + 0.4 * extra < s <= typical + 2.5 * extra]
    expected = f"a mean near {typical:.3f} s (iterations 2 to {len(clock)}, as seen from outside)"
    if counted:
        return failed(
            expected,
            f"{counted[0]:.3f} s",
            "rank 0's output, and the files it left",
            Cause(
                "first_iteration_timed",
                f"the first iteration took {pause:g} s longer than the others and is part of your "
                "mean: discard it",
            ),
        )
    return failed(
        expected,
        "no such number in a line that speaks of a mean, or of a time per iteration",
        "rank 0's output, and the files it left",
        Cause("not_timed", "print the mean time of an iteration in seconds, the first discarded"),
    )


def metric(task):
    """After every epoch the metric of the whole dev set is told."""
    evidence, rows = task.runs["adamw"], task.rows("adamw", "dev")
    epochs, answers = epochs_of(evidence), task.answers("adamw")
    if len(epochs) < evidence.setting.epochs:
        return failed(
            f"an evaluation after each of {evidence.setting.epochs} epochs",
            f"{len(epochs)} of them (after steps {', '.join(map(str, epochs)) or 'none'})",
            "passes of the model without gradients",
            Cause("metric_missing", "evaluate on the dev set after every epoch, under no_grad"),
        )
    whole, shards = [], []
    for found in epochs.values():
        parts = [score(one, answers) for one in found]
        together = dict(pair for part in parts for pair in part.items())
        if len(together) < rows:
            return failed(
                f"all {rows} rows of the dev set",
                f"{len(together)} of them",
                "the rows of all ranks together",
                Cause("shard_evaluated", "no rank evaluates the rest of the dev set"),
            )
        whole.append(mean(together.values()))
        shards.append(mean(parts[0].values()) if parts[0] else 0.0)
    for scale in (1, 100):
        values = [value * scale for value in whole]
        if any(in_order(values, t, 6e-5 * scale) == len(whole) for t in sources(task, "adamw")):
            return passed("accuracy " + ", ".join(f"{value:.4f}" for value in whole))
    own = any(in_order(shards, text, 6e-5) for text in sources(task, "adamw"))
    return failed(
        "accuracy " + ", ".join(f"{value:.4f}" for value in whole),
        "rank 0's own share: " + ", ".join(f"{s:.4f}" for s in shards) if own else "other numbers",
        "rank 0's output, and the files it left",
        Cause(
            "shard_evaluated", "the metric printed is that of rank 0's share of the dev set alone"
        )
        if own
        else Cause("not_printed", "print the metric of the whole dev set after every epoch"),
    )


def epochs_of(evidence):
    """Update -> the ranks' evaluations after it, in order (at most the last of each epoch)."""
    found = {}
    for rank in evidence.ranks:
        for one in rank.evaluations:
            if one.after:
                found.setdefault(one.after, []).append(one)
    return found


def score(evaluation, answers):
    """Row -> whether it was predicted right."""
    right = {}
    for (ids, _, label), guess in zip(evaluation.rows, evaluation.predictions, strict=False):
        right[ids] = float(guess == (label if label >= 0 else answers.get(ids, -1)))
    return right


def traffic(task):
    """Task 4 tells the bytes of an iteration as they were seen."""
    evidence = task.runs["plain"]
    step = evidence.ranks[0].steps[min(2, evidence.seen.steps - 1)]
    handed = sum(c["bytes"] for c in step.collectives if c["elements"] > BOOKKEEPING)
    size = task.workers
    seen = {
        "payload": handed,
        "sent_bytes": 2 * (size - 1) / size * handed,
        "expected": 4 * (size - 1) * handed,  # sent and received, by all ranks
    }
    carried = f"the loopback carried {evidence.seen.ended.loopback:,} bytes in the whole run"
    told = our_summary(evidence.seen.left)
    if told:
        for name, wanted in seen.items():
            if abs(told.get(name, 0) - wanted) > 0.01 * wanted:
                return wrong_bytes(
                    f"{name}: {wanted:,.0f}", f"{told.get(name, 0):,.0f}", told, wanted
                )
        return passed(f"{handed:,} bytes handed over by each rank in an iteration; {carried}")
    texts = sources(task, "plain")
    found = [value for text in texts for value, _ in numbers(THOUSANDS.sub("", text))]
    for wanted in (*seen.values(), seen["expected"] / 2):
        for unit in (1, 1e3, 1024, 1e6, 1024**2):
            if any(abs(value * unit - wanted) <= 0.02 * wanted for value in found if value > 1):
                return passed(f"{wanted:,.0f} bytes in an iteration; {carried}")
    return wrong_bytes(f"{handed:,} handed over by each rank", "no number near it", {}, handed)


def our_summary(left):
    """The means per iteration of the handout's traffic.rank0.json, if it is there."""
    for found in re.finditer(r'"per_iteration": (\{[^{}]*\})', left):
        try:
            return {name: float(value) for name, value in json.loads(found.group(1)).items()}
        except (ValueError, TypeError, AttributeError):
            continue
    return {}


def wrong_bytes(expected, got, told, wanted):
    """The outcome of bytes that are not those seen."""
    ratios = [value / wanted for value in told.values() if value]
    near = min(ratios, key=lambda r: abs(r - 1), default=0)
    return failed(
        f"bytes per iteration, {expected}",
        got,
        "the figures that task 4 left, beside the collectives as they were seen",
        Cause(
            "wrong_traffic",
            "the figures are not the bytes that were handed to the collectives, nor what a ring "
            f"sends of them{f' (nearest: {near:.2f} times)' if near else ''}",
        ),
    )
