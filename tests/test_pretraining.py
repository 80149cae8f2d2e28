"""Task 8's data: corpora that are the same every time, and batches that chance decides right."""

import hashlib
import itertools
import math
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from common.data import preparing
from common.data.corpus import Corpus
from common.data.pretraining import IGNORED, PretrainingBatches, PretrainingRows, load_tokenizer
from common.data.wordpiece import (
    CLS,
    MASK,
    NORMALIZER,
    PRE_TOKENIZER,
    SEP,
    SPECIAL,
    words_in,
)
from common.errors import UserError
from common.models.pretraining import new_model
from common.models.tiny import tiny_model
from sample_data.make_corpus import corpus as bundled
from task8.prepare import main as prepare

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A prepared corpus of 400 of the bundled documents, in three files."""
    folder = tmp_path_factory.mktemp("corpus")
    text = folder / "text"
    text.mkdir()
    documents = bundled(400).split("\n\n")
    for at in range(3):
        (text / f"{at}.txt").write_text("\n\n".join(documents[at::3]))
    assert run(folder / "made", text) == 0
    return folder / "made"


def run(folder, *corpus, shards=3, vocab_size=1000, extra=()):
    given = ["--output_dir", folder, "--shards", shards, "--vocab_size", vocab_size, *extra]
    return prepare([str(word) for word in ("--corpus", *corpus, *given)])


def rows(folder, length=128, seed=1):
    return PretrainingRows(Corpus(folder), length, seed)


def batches(rows, rank=0, size=1, batch=8, accumulated=1):
    args = SimpleNamespace(
        per_gpu_train_batch_size=batch, gradient_accumulation_steps=accumulated, max_seq_length=128
    )
    world = SimpleNamespace(rank=rank, size=size, device=torch.device("cpu"))
    return PretrainingBatches({"train": rows}, None, args, world)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def digests(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def within_three_sigma(hits, of, p):
    return abs(hits - of * p) <= 3 * math.sqrt(of * p * (1 - p))


def test_the_shards_hold_the_text_as_the_tokenizer_encodes_it(folder):
    corpus = Corpus(folder)
    tokenizer = load_tokenizer(corpus)
    documents = [
        document
        for at in range(3)
        for document in (folder.parent / "text" / f"{at}.txt").read_text().split("\n\n")
    ]
    expected = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in documents]
    found = []
    for shard in corpus.shards:
        borders = shard.sentences[shard.documents]
        found += [shard.tokens[a:b].tolist() for a, b in itertools.pairwise(borders)]
    assert len(corpus.shards) == 3
    assert found == expected
    assert not any(SPECIAL.index("[UNK]") in ids for ids in found)


def test_the_same_text_gives_the_same_files_in_another_process(folder, tmp_path):
    command = [sys.executable, ROOT / "task8" / "prepare.py", "--corpus", folder.parent / "text"]
    command += ["--output_dir", tmp_path / "again", "--shards", "3", "--vocab_size", "1000"]
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    subprocess.run(command, check=True, timeout=60, env=environment, stdout=subprocess.DEVNULL)
    assert digests(tmp_path / "again") == digests(folder)


def test_several_processes_make_the_same_files(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "PARALLEL_BYTES", 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert run(tmp_path / "again", folder.parent / "text") == 0
    assert digests(tmp_path / "again") == digests(folder)


KILLED = """
import os, signal
from common.data.parallel import processes

def work(text):
    return os.getpid()

if __name__ == "__main__":
    with processes(2) as work_on:
        others = {process for process, _ in work_on(work, [("", 0)] * 50)} - {os.getpid()}
        print(len(others), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_processes_of_a_killed_preparation_end(tmp_path):
    (tmp_path / "killed.py").write_text(KILLED)
    # they share its stdout: reading to its end waits for all of them
    ended = subprocess.run(
        [sys.executable, tmp_path / "killed.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        timeout=60,
    )
    assert ended.returncode == -signal.SIGKILL
    assert int(ended.stdout) in (1, 2)


def test_masks_are_fifteen_percent_in_three_kinds_and_pairs_follow_in_half_of_the_cases(folder):
    data = rows(folder)
    count, random_pairs, kinds = Counter(), 0, Counter()
    for row in range(len(data)):
        example = data.example(1, row)
        ids, labels = example["input_ids"], example["labels"]
        chosen = labels != IGNORED
        assert not (labels[chosen] < len(SPECIAL)).any()
        count["tokens"] += int((ids >= len(SPECIAL)).sum() + (ids == MASK).sum())
        count["chosen"] += int(chosen.sum())
        kinds["mask"] += int((ids[chosen] == MASK).sum())
        kinds["kept"] += int((ids[chosen] == labels[chosen]).sum())
        random_pairs += int(example["next_sentence_label"])
        assert not (ids[~chosen] == MASK).any()
    total = count["chosen"]
    kinds["other"] = total - kinds["mask"] - kinds["kept"]
    assert within_three_sigma(total, count["tokens"], 0.15)
    for kind, share in {"mask": 0.8, "kept": 0.1, "other": 0.1}.items():
        assert within_three_sigma(kinds[kind], total, share), kind
    assert within_three_sigma(random_pairs, len(data), 0.5)


def test_an_example_is_a_pair_that_fits_with_its_segments_and_special_tokens(folder):
    for length in (24, 128, 512):
        data = rows(folder, length)
        for row in range(0, len(data), 7):
            example = data.example(2, row)
            restored = torch.where(
                example["labels"] == IGNORED, example["input_ids"], example["labels"]
            )
            a = int((example["token_type_ids"] == 0).sum())
            assert len(restored) <= length
            assert restored[0] == CLS
            assert restored[a - 1] == restored[-1] == SEP
            assert int((restored == SEP).sum()) == 2
            assert 2 < a < len(restored) - 1


def test_b_follows_a_exactly_where_the_label_is_0(folder):
    data = rows(folder, 4096)  # nothing is cut
    texts = [" ".join(map(str, shard.tokens)) for shard in data.corpus.shards]
    for row in range(0, len(data), 3):
        example = data.example(1, row)
        restored = torch.where(
            example["labels"] == IGNORED, example["input_ids"], example["labels"]
        )
        joined = " ".join(str(int(token)) for token in restored if token not in (CLS, SEP))
        found = any(f" {joined} " in f" {text} " for text in texts)
        assert found == (example["next_sentence_label"] == 0)


def test_every_sentence_is_in_a_row_of_its_document(folder):
    data = rows(folder, 64)
    for number, shard in enumerate(data.corpus.shards):
        own = slice(data.first_rows[number], data.first_rows[number + 1])
        covered = np.zeros(len(shard.sentences) - 1, int)
        for start, end in zip(data.starts[own], data.ends[own], strict=True):
            covered[start:end] += 1
            assert end - start >= 2
            assert not set(shard.documents[:-1].tolist()) & set(range(start + 1, end))
        assert covered.min() == 1
        assert covered.max() <= 2


def test_draws_depend_on_seed_epoch_and_row_alone(folder):
    data = rows(folder)
    first = data.example(1, 5)
    assert same(first, rows(folder).example(1, 5))
    assert not same(first, data.example(2, 5))
    assert not same(first, rows(folder, seed=2).example(1, 5))
    pair = torch.where(first["labels"] == IGNORED, first["input_ids"], first["labels"])
    read = hashlib.sha256(repr(pair.tolist()).encode()).hexdigest()[:12]
    assert read == "37d8a03eeaa9"  # in every process, on every machine


def test_a_run_can_go_on_at_any_step(folder):
    data = batches(rows(folder))
    whole = list(data.epoch(3))
    assert len(whole) == len(data)
    for start in (0, 4, len(data)):
        rest = list(data.epoch(3, start))
        assert len(rest) == len(data) - start
        for step, other in zip(rest, whole[start:], strict=True):
            assert all(same(a, b) for (a, _), (b, _) in zip(step, other, strict=True))


def test_workers_together_read_the_rows_of_one_worker(folder):
    def read(step):
        ids = (batch["input_ids"] for batch, _ in step)
        return sorted(tuple(row[row != 0].tolist()) for each in ids for row in each)

    data = rows(folder)
    one = [read(step) for step in batches(data, batch=8).epoch(1)]
    accumulated = batches(data, batch=2, accumulated=4).epoch(1)
    assert [read(step) for step in accumulated] == one
    four = [list(batches(data, rank, 4, batch=2).epoch(1)) for rank in range(4)]
    together = zip(*four, strict=True)
    assert [sorted(row for each in step for row in read(each)) for step in together] == one
    step = next(iter(batches(data, 1, 2, batch=2, accumulated=2).epoch(1)))
    assert (step.examples, step.total, [weight for _, weight in step]) == (4, 8, [0.5, 0.5])


def test_an_epoch_reads_each_row_at_most_once_and_another_epoch_in_another_order(folder):
    data = rows(folder)
    first, second = data.order(1), data.order(2)
    assert sorted(first) == sorted(second) == list(range(len(data)))
    assert (first != second).mean() > 0.9


def test_killed_before_any_of_its_files_the_same_command_makes_the_same_corpus(tmp_path, capfd):
    text = tmp_path / "text.txt"
    text.write_text(bundled(60))
    assert run(tmp_path / "whole", text, shards=2, vocab_size=300) == 0
    for number in itertools.count(1):
        made = tmp_path / f"killed-{number}"
        if not (child := os.fork()):
            try:
                kill_before_file(number)
                os._exit(run(made, text, shards=2, vocab_size=300))
            finally:
                os._exit(1)
        died = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert died in (0, -signal.SIGKILL)
        assert (made / "corpus.json").exists() == (died == 0)
        assert run(made, text, shards=2, vocab_size=300) == 0
        assert digests(made) == digests(tmp_path / "whole")
        if died == 0:
            break
    assert number == 12  # 11 files: two shards of 4, preparing.json, vocab.txt, corpus.json
    capfd.readouterr()


def kill_before_file(number):
    """Kill this process just before it finishes its file of that number."""
    moves = itertools.count(1)

    def hook(event, _):
        if event == "os.rename" and next(moves) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def test_another_text_is_refused_and_replaced_only_if_asked(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("One thing. Another thing.\n\nA third thing. A fourth one.\n" * 9)
    made = tmp_path / "made"
    assert run(made, text, vocab_size=60) == 0
    first = Corpus(made).digest
    assert run(made, text, vocab_size=60) == 0
    assert run(made, text, vocab_size=50) == 2
    text.write_text(text.read_text().replace("third", "3rd"))
    assert run(made, text, vocab_size=60) == 2
    assert "differs in bytes, sha256" in capsys.readouterr().err
    assert Corpus(made).digest == first
    assert run(made, text, vocab_size=60, extra=["--overwrite_output_dir"]) == 0
    assert Corpus(made).digest != first


@pytest.mark.parametrize(
    ("content", "vocab_size", "message"),
    [
        (b"Good text.\n\nCaf\xe9.", 99, "text.txt, byte 15: 0xe9 is not UTF-8"),
        (b"", 99, "no words"),
        (b" \n\n \n", 99, "no words"),
        (b"One document only. It has two sentences.", 99, "fewer than two documents"),
        (b"One. Two.\n\nThree. Four.", 20, "--vocab_size 20: is too small"),
    ],
)
def test_text_that_cannot_be_used_is_named(tmp_path, capsys, content, vocab_size, message):
    text = tmp_path / "text.txt"
    text.write_bytes(content)
    assert run(tmp_path / "made", text, vocab_size=vocab_size) == 2
    assert message in capsys.readouterr().err
    with pytest.raises(UserError, match=r"no corpus\.json"):
        Corpus(tmp_path / "made")


def test_a_long_document_is_cut_and_nothing_of_it_is_lost(tmp_path):
    text = tmp_path / "text.txt"
    line = "word " * 20_000 + "\n"  # 100 kB
    text.write_text(line * 25 + "\nAnother document. It ends here.")
    assert run(tmp_path / "made", text, shards=2, vocab_size=50) == 0
    corpus = Corpus(tmp_path / "made")
    word = load_tokenizer(corpus).convert_tokens_to_ids("word")
    assert sum(int((shard.tokens == word).sum()) for shard in corpus.shards) == 25 * 20_000
    assert corpus.facts["documents"] == 4


def test_a_shard_of_another_size_is_refused(folder, tmp_path):
    made = shutil.copytree(folder, tmp_path / "made")
    with (made / "shard-00001.tokens.bin").open("ab") as file:
        file.write(b"\0\0")
    with pytest.raises(UserError, match="cannot be read"):
        Corpus(made)


def test_white_space_separates_words_as_for_the_tokenizer():
    for text in (
        "It's 3.5% (or so)...",
        "caf\u00e9 \u4e2d\u6587 na\u00efve",
        "A\u00a0b\u2003c",
        "x\ufb01",
    ):
        parts = [part for word in text.split() for part in words_in(word)]
        normal = NORMALIZER.normalize_str(text)
        assert parts == [word for word, _ in PRE_TOKENIZER.pre_tokenize_str(normal)]


def test_tiny_task1_starts_with_the_encoder_of_task_1():
    args = SimpleNamespace(model_name_or_path="tiny-task1", config_name="")
    started = new_model(args, 300).bert.state_dict()
    assert same(started, tiny_model(2, vocab_size=300).bert.state_dict())
    args.model_name_or_path = "tiny"
    assert not same(started, new_model(args, 300).bert.state_dict())
