"""The bundled sample: made again byte for byte, in the format of RTE, and fair to both labels."""

import re
import runpy
from collections import Counter
from pathlib import Path

import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

SAMPLE = Path(__file__).parents[1] / "sample_data"
ROWS = {"train": 2490, "dev": 277}
LABELS = {"entailment", "not_entailment"}


def read(split):
    """(index, premise, hypothesis, label) of every row, after the header."""
    text = (SAMPLE / "RTE" / f"{split}.tsv").read_text(encoding="ascii")
    assert text.endswith("\n")
    header, *rows = text[:-1].split("\n")
    assert header == "index\tsentence1\tsentence2\tlabel"
    return [tuple(row.split("\t")) for row in rows]


def test_the_generator_writes_the_committed_files_byte_for_byte():
    files = runpy.run_path(str(SAMPLE / "make_sample.py"))["files"]()
    assert {path.name for path in files} == {"train.tsv", "dev.tsv", "tiny_vocab.txt"}
    for path, text in files.items():
        assert path.read_bytes() == text.encode(), f"{path.name}: run sample_data/make_sample.py"


@pytest.mark.parametrize("split", ROWS)
def test_a_split_has_the_size_of_rte_and_half_of_each_label(split):
    rows = read(split)
    assert [row[0] for row in rows] == [str(index) for index in range(ROWS[split])]
    counts = Counter(label for *_, label in rows)
    assert counts.keys() == LABELS
    assert abs(counts["entailment"] - counts["not_entailment"]) <= 1


def test_premises_are_of_many_lengths():
    lengths = [len(row[1].split()) for row in read("train")]
    assert min(lengths) >= 8
    assert max(lengths) <= 60
    assert sum(length < 16 for length in lengths) > 249
    assert sum(length > 40 for length in lengths) > 249


def test_no_premise_comes_twice_so_the_splits_share_no_pair():
    premises = [row[1] for split in ROWS for row in read(split)]
    assert len(set(premises)) == len(premises)


def test_every_slot_is_filled_and_every_article_fits():
    text = "\n".join("\n".join(row[1:3]) for split in ROWS for row in read(split))
    assert not re.search(r"[{}_/=|]|  ", text)
    assert not re.search(r"\ba [aeiou]", text, re.IGNORECASE)


@pytest.mark.parametrize("column", [1, 2], ids=["premise", "hypothesis"])
def test_one_sentence_alone_does_not_tell_the_label(column):
    bag = CountVectorizer(ngram_range=(1, 2))
    classifier = make_pipeline(bag, LogisticRegression(max_iter=1000))
    train, dev = read("train"), read("dev")
    classifier.fit([row[column] for row in train], [row[3] for row in train])
    assert classifier.score([row[column] for row in dev], [row[3] for row in dev]) <= 0.56
