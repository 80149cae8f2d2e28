"""The rows of the data sets, by the token ids that a script may read them as."""

import csv
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

from common.data.glue import find_glue_task
from grading.inputs import LENGTH, ROWS


class Row(NamedTuple):
    """A row of a TSV file as the model is to read it: token ids, segments and label.

    `problem` is "" or the cause's name if the token ids that it is known by are wrong for it.
    """

    number: int  # its place in the file
    ids: tuple[int, ...]
    types: tuple[int, ...]
    label: int
    problem: str = ""


Known = dict[tuple, Row]  # token ids -> their Row


def read(folder: Path) -> dict[str, dict[str, Known]]:
    """Data set -> split -> its rows, of the inputs in `folder`.

    Scripts differ in the pair's truncation, and in whether they lowercase: the assignment's command
    does not say so. All of that is right.
    """
    return {
        name: {split: read_split(folder, name, split) for split in ("train", "dev")}
        for name in ROWS
    }


def read_split(folder: Path, name: str, split: str) -> Known:
    """The rows of one file; right readings come before wrong ones that have the same ids."""
    from transformers import BertTokenizer

    words = find_glue_task("RTE").labels or ()
    with (folder / name / f"{split}.tsv").open(newline="") as file:
        _, *rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    found, wrong = {}, {}
    for lowercase in (True, False):
        tokenizer = BertTokenizer(str(folder / "model" / "vocab.txt"), do_lower_case=lowercase)
        start, end = (tokenizer.vocab[sign] for sign in ("[CLS]", "[SEP]"))
        for number, (_, *texts, label) in enumerate(rows):
            pair = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in texts]
            first, *others = right_readings(pair, start, end)
            right = Row(number, *first, words.index(label))
            for ids, types in (first, *others):
                found.setdefault(ids, right._replace(ids=ids, types=types))
            for ids, types, problem in wrong_readings(pair, start, end):
                as_read = {"ids": ids, "types": types} if problem == "wrong_truncation" else {}
                wrong.setdefault(ids, right._replace(**as_read, problem=problem))
    return wrong | found


def right_readings(pair: list, start: int, end: int) -> Iterator[tuple[tuple, tuple]]:
    """(ids, types) of a pair of texts, cut to LENGTH in each usual way: longest first, or one."""
    for shorter, last in product((longest_first, one_side), (False, True)):
        yield joined(*shorter(pair[0], pair[1], LENGTH - 3, last), start, end)


def wrong_readings(pair: list, start: int, end: int) -> Iterator[tuple[tuple, tuple, str]]:
    """(ids, types, cause) of a pair of texts that is read wrongly in a usual way."""
    a, b = pair
    whole = joined(a, b, start, end)
    for longest in (128, 256, 512):
        yield *joined(*longest_first(a, b, longest - 3, False), start, end), "wrong_truncation"
    yield whole[0][:LENGTH], whole[1][:LENGTH], "wrong_truncation"  # the separator is cut off
    for shorter, last in product((longest_first, one_side), (False, True)):
        yield *joined(*shorter(b, a, LENGTH - 3, last), start, end), "texts_swapped"
    for text in (a, b, a + b):
        ids = (start, *text[: LENGTH - 2], end)
        yield ids, (0,) * len(ids), "text_missing"


def joined(a: list, b: list, start: int, end: int) -> tuple[tuple, tuple]:
    """The ids and types of BERT's input of two texts."""
    return (start, *a, end, *b, end), (*[0] * (len(a) + 2), *[1] * (len(b) + 1))


def longest_first(a: list, b: list, most: int, last: bool) -> tuple[list, list]:
    """Two texts cut to `most` tokens from the longer one; of equal ones the second if `last`."""
    a, b = list(a), list(b)
    while len(a) + len(b) > most:
        (a if len(a) > len(b) or (len(a) == len(b) and not last) else b).pop()
    return a, b


def one_side(a: list, b: list, most: int, last: bool) -> tuple[list, list]:
    """Two texts of which only the first, or if `last` only the second, is cut."""
    if last:
        return a, b[: max(most - len(a), 0)]
    return a[: max(most - len(b), 0)], b
