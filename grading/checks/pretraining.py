"""Checks of what task 8 reads: whose rows, which pairs of sentences, and where it has masks."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from math import sqrt

from grading.checks.evidence import Evidence
from grading.checks.graded_task import GradedTask
from grading.checks.observation import Forward, Step
from grading.checks.reader import IGNORED
from grading.pretraining_inputs import LENGTH, PretrainingSetting
from grading.results import Cause, Outcome, failed, passed, unknown

import numpy as np

SPECIAL = 5  # ids below are [PAD], [UNK], [CLS], [SEP] and [MASK]
MASK = 4
MASKED = 0.15
KINDS = {"[MASK]": 0.8, "another token": 0.1, "the token itself": 0.1}
SIGMAS = 4.0  # by which a share may be off: one right run in 16,000 is
REPEATED = 3  # rows that are read twice with the same masks: chance does that to none


def forwards(evidence: Evidence) -> Iterator[tuple[int, int, Forward]]:
    """(step from 0, rank, pass) of every pass of training."""
    for step, rank in product(range(evidence.seen.steps), range(evidence.size)):
        for one in evidence.ranks[rank].steps[step].forwards:
            if one.arrays:
                yield step, rank, one


def counted(step: Step, setting: PretrainingSetting) -> list[Forward]:
    """The passes of an update, without those of updates before it that were skipped."""
    return step.forwards[-setting.accumulated :]


def restored(forward: Forward) -> np.ndarray:
    """A pass's token ids, with the tokens that were masked in their places."""
    labels = forward.arrays["labels"]
    return np.where(labels == IGNORED, forward.arrays["input_ids"], labels)


def is_off(hits: int, of: int, share: float) -> bool:
    """Whether a count is farther from its share than chance allows."""
    return abs(hits - of * share) > SIGMAS * sqrt(of * share * (1 - share))


def own_rows(graded: GradedTask) -> Outcome:
    """Each rank reads its own rows, as many as are asked for, and no row twice in a step."""
    evidence, wanted = graded.runs["adamw"], graded.batch
    if not any(forwards(evidence)):
        return unknown("no pairs were seen: the model is not called with next_sentence_label")
    for step in range(evidence.seen.steps):
        of_ranks = [rank.steps[step].rows for rank in evidence.ranks]
        where = f"step {step + 1}"
        if evidence.size > 1 and all(sorted(rows) == sorted(of_ranks[0]) for rows in of_ranks):
            cause = Cause("same_data", "all ranks read the same rows: take those of this rank")
            return failed("other rows on each rank", "the same rows on all", where, cause)
        counts = [len(rows) for rows in of_ranks]
        if counts != [wanted] * evidence.size:
            text = f"{counts} rows: a worker reads the micro-batch times the accumulation"
            cause = Cause("batch_not_divided", text)
            return failed(f"{wanted} rows for each rank", str(counts), where, cause)
        every = [row for rows in of_ranks for row in rows]
        if len(set(every)) < len(every):
            text = "the ranks' or the micro-batches' parts overlap"
            cause = Cause("rows_shared", text)
            return failed("each row once", f"{len(set(every))} of {len(every)}", where, cause)
    return passed(f"{wanted} rows for each of {evidence.size} ranks, in each step")


def masks(graded: GradedTask) -> Outcome:
    """15 % of the tokens are to be predicted, in three kinds; never special tokens or padding."""
    evidence = graded.runs["adamw"]
    for step, rank, forward in forwards(evidence):
        cause = misplaced(forward)
        if cause:
            where = f"step {step + 1}, rank {rank}"
            return failed("labels of masked words alone", "others", where, cause)
    counts = count(evidence)
    if not counts["words"]:
        return unknown("no pairs were seen: the model is not called with next_sentence_label")
    found = counts["labeled"]
    share = found / counts["words"]
    where, got = f"{counts['words']:,} words of all steps", f"{share:.1%} of the words"
    if share > 0.9:
        cause = Cause("all_predicted", "every token has a label: others than masked ones get -100")
        return failed("labels of 15 % of the words", got, where, cause)
    if is_off(found, counts["words"], MASKED):
        cause = Cause("mask_share", f"{share:.1%} of the words have a label: choose 15 %")
        return failed("labels of 15 % of the words", got, where, cause)
    kinds = {kind: counts[kind] / found for kind in KINDS}
    text = ", ".join(f"{part:.1%} {kind}" for kind, part in kinds.items())
    if any(is_off(counts[kind], found, part) for kind, part in KINDS.items()):
        sentence = f"what stands in the place of a masked word is {text}: it is to be 80, 10, 10 %"
        where = f"{found:,} words with a label"
        return failed("80 %, 10 % and 10 %", text, where, Cause("mask_kinds", sentence))
    again, same = repeated(evidence)
    if same >= REPEATED and same > again / 2:
        sentence = "a row has the same masks in every epoch: draw them by epoch and row"
        got = f"{same} of {again} rows that came again have the masks of before"
        return failed(
            "new masks in every epoch", got, "all epochs", Cause("static_masks", sentence)
        )
    return passed(f"{share:.1%} of {counts['words']:,} words: {text}")


def misplaced(forward: Forward) -> Cause | None:
    """A Cause if labels stand where none may, or are missing where one must."""
    arrays = forward.arrays
    ids, labels, padding = arrays["input_ids"], arrays["labels"], arrays["attention_mask"] == 0
    if (labels[padding] != IGNORED).any():
        text = "padding has labels, so that the model learns to predict it: give it -100"
        return Cause("pad_predicted", text)
    if ((labels != IGNORED) & (labels < SPECIAL)).any():
        text = "special tokens ([CLS], [SEP]) are chosen: choose among the words alone"
        return Cause("special_masked", text)
    if ((ids == MASK) & (labels == IGNORED)).any():
        text = "there are [MASK] tokens without a label: keep each one's word as its label"
        return Cause("labels_missing", text)
    return None


def count(evidence: Evidence) -> dict[str, int]:
    """How many words there are, how many have labels, and of these how many of each kind."""
    found: dict[str, int] = defaultdict(int)
    for _, _, forward in forwards(evidence):
        ids, labels = forward.arrays["input_ids"], forward.arrays["labels"]
        chosen = labels != IGNORED
        found["words"] += int((restored(forward) >= SPECIAL).sum())
        found["labeled"] += int(chosen.sum())
        found["[MASK]"] += int((ids[chosen] == MASK).sum())
        found["the token itself"] += int((ids[chosen] == labels[chosen]).sum())
    found["another token"] = found["labeled"] - found["[MASK]"] - found["the token itself"]
    return found


def repeated(evidence: Evidence) -> tuple[int, int]:
    """How often a pair was read that had been read before, and how often with the same masks."""
    before: dict[tuple, set] = {}
    again = same = 0
    for _, _, forward in forwards(evidence):
        for tokens, labels in zip(restored(forward), forward.arrays["labels"], strict=True):
            key, masked = tuple(tokens[tokens > 0]), tuple(labels[tokens > 0])
            again += key in before
            same += masked in before.get(key, ())
            before.setdefault(key, set()).add(masked)
    return again, same


def pairs(graded: GradedTask) -> Outcome:
    """In half of the pairs B follows A in the text, and the labels say in which."""
    evidence = graded.runs["adamw"]
    follows = [int(x) for *_, one in forwards(evidence) for x in one.arrays["next_sentence_label"]]
    if not follows:
        return unknown("no pairs were seen: the model is not called with next_sentence_label")
    share = follows.count(0) / len(follows)
    if is_off(follows.count(0), len(follows), 0.5):
        text = f"in {share:.0%} of the pairs the label is 0, which is B follows A: draw it in half"
        where = f"{len(follows)} pairs"
        return failed("half of the pairs", f"{share:.0%}", where, Cause("pairs_uneven", text))
    for step, rank, forward in forwards(evidence):
        cause = wrong_pair(forward, graded.corpus)
        if cause:
            where = f"step {step + 1}, rank {rank}"
            return failed("sentences of the corpus, and their label", "others", where, cause)
    return passed(f"{share:.0%} of {len(follows)} pairs follow each other")


def wrong_pair(forward: Forward, corpus: str) -> Cause | None:
    """A Cause if a pair's label is not what the corpus has; pairs that were cut are not judged."""
    arrays = forward.arrays
    rows = zip(
        restored(forward), arrays["token_type_ids"], arrays["next_sentence_label"], strict=True
    )
    for tokens, segments, label in rows:
        if np.count_nonzero(tokens) >= LENGTH:
            continue
        a, b = (tokens[(segments == part) & (tokens >= SPECIAL)] for part in (0, 1))
        if text_of(a) not in corpus or text_of(b) not in corpus:
            text = "with the labels in place of masked words it is no text of the corpus: a label "
            return Cause("wrong_labels", f"{text}is the token that stood there before")
        if (text_of([*a, *b]) in corpus) != (label == 0):
            text = "a pair's label is not what the text has: 0 if B follows A, 1 if it is another's"
            return Cause("pairs_mislabeled", text)
    return None


def text_of(tokens) -> str:
    """Token ids as the corpus's text has them."""
    return f" {' '.join(map(str, tokens))} "
