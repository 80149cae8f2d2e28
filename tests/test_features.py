"""Tokenizing the examples, and a cache that many processes share and any may die on."""

import dataclasses
import hashlib
import multiprocessing
import os
import select
import subprocess
import sys
import time
from pathlib import Path

from common.data import features, glue
from common.data.features import load_features
from common.data.glue import GLUE_TASKS
from common.errors import UserError

import filelock
import pytest
import torch
from transformers import BertTokenizerFast

RTE = GLUE_TASKS["RTE"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "boat", "sail", "##ed", "s", "##ank"]
ID = {word: number for number, word in enumerate(WORDS)}
CLS, SEP = ID["[CLS]"], ID["[SEP]"]
A, BOAT, SAIL, ED = ID["a"], ID["boat"], ID["sail"], ID["##ed"]
DEADLINE = 60.0


class CountingTokenizer(BertTokenizerFast):
    """A tokenizer of few words that notes each use in a file, whichever process makes it."""

    calls = None

    def set_truncation_and_padding(self, *args, **kwargs):
        with open(self.calls, "a") as file:
            file.write(f"{os.getpid()}\n")
        super().set_truncation_and_padding(*args, **kwargs)


def make_tokenizer(folder, vocab=ID, **kwargs):
    tokenizer = CountingTokenizer(vocab=dict(vocab), **kwargs)
    tokenizer.calls = folder / "calls.txt"
    return tokenizer


def builds(folder):
    """How often anything was tokenized, by any process."""
    path = folder / "calls.txt"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def folder(tmp_path):
    """A data folder of RTE: two examples in the training set, one in each other."""
    header = "index\tsentence1\tsentence2\tlabel\n"
    write(tmp_path, "train", header + "0\tA boat\tsailed\tnot_entailment\n1\ta\ta\tentailment\n")
    write(tmp_path, "dev", header + "0\tboat\ta sail\tentailment\n")
    write(tmp_path, "test", "index\tsentence1\tsentence2\n0\tboat\ta\n")
    return tmp_path


def write(folder, split, text):
    (folder / f"{split}.tsv").write_text(text)


def load_rte(folder, **changes):
    given = {"glue_task": RTE, "data_dir": folder, "split": "train", "max_length": 16, **changes}
    return load_features(**{"tokenizer": make_tokenizer(folder), **given})


def only(folder, pattern):
    """The one file in a folder whose name matches."""
    (path,) = folder.glob(pattern)
    return path


def test_an_item_has_the_ids_of_its_example_and_its_label(folder):
    rte = load_rte(folder)
    assert len(rte) == 2
    first = {name: tensor.tolist() for name, tensor in rte[0].items()}
    assert first["input_ids"] == [CLS, A, BOAT, SEP, SAIL, ED, SEP]
    assert first["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    assert first["labels"] == 1
    assert rte[1]["input_ids"].tolist() == rte[-1]["input_ids"].tolist() == [CLS, A, SEP, A, SEP]
    assert {tensor.dtype for tensor in rte[0].values()} == {torch.int64}
    assert rte[0]["labels"].shape == ()
    assert [len(item["input_ids"]) for item in rte] == [7, 5]
    with pytest.raises(IndexError):
        rte[2]


def test_the_longer_text_of_a_pair_is_cut_first(folder):
    write(folder, "train", "index\tsentence1\tsentence2\tlabel\n0\ta\ta boat sailed\tentailment\n")
    ids = load_rte(folder, max_length=6)[0]["input_ids"].tolist()
    assert ids == [CLS, A, SEP, A, BOAT, SEP]


def test_a_test_split_has_no_labels(folder):
    assert set(load_rte(folder, split="test")[0]) == {"input_ids", "token_type_ids"}


def test_single_sentences_and_scores(folder):
    write(folder, "dev", "sentence\tlabel\na boat\t1\n")
    item = load_rte(folder, glue_task=GLUE_TASKS["SST-2"], split="dev")[0]
    assert item["input_ids"].tolist() == [CLS, A, BOAT, SEP]
    header = (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
    )
    write(folder, "dev", f"{header}\n0\tg\tf\ty\to\ts\ts\ta\tboat\t3.750\n")
    item = load_rte(folder, glue_task=GLUE_TASKS["STS-B"], split="dev")[0]
    assert item["labels"].dtype == torch.float32
    assert item["labels"].item() == 3.75


def test_token_types_are_left_out_for_models_without_them(folder):
    tokenizer = make_tokenizer(folder)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    assert set(load_rte(folder, tokenizer=tokenizer)[0]) == {"input_ids", "labels"}


def test_tokenizing_in_chunks_changes_nothing(folder, monkeypatch):
    whole = load_rte(folder)
    monkeypatch.setattr(features, "CHUNK", 1)
    assert load_rte(folder, overwrite=True).digest == whole.digest
    assert builds(folder) == 1 + 2


def test_the_digest_distinguishes_what_is_fed(folder, tmp_path_factory):
    digest = load_rte(folder).digest
    assert load_rte(folder, max_length=20, cache_dir=tmp_path_factory.mktemp("c")).digest == digest
    assert load_rte(folder, max_length=5).digest != digest
    write(folder, "train", (folder / "train.tsv").read_text().replace("not_ent", "ent"))
    assert load_rte(folder).digest != digest


def test_a_second_load_reads_what_the_first_cached(folder):
    tokenizer = make_tokenizer(folder)
    first = load_rte(folder, tokenizer=tokenizer)
    load_rte(folder, tokenizer=tokenizer, split="dev", max_length=5)  # leaves its state behind
    assert builds(folder) == 2
    for again in (tokenizer, make_tokenizer(folder)):
        second = load_rte(folder, tokenizer=again)
        assert second.digest == first.digest
        assert [item["labels"].item() for item in second] == [1, 0]
        assert second[0]["input_ids"].tolist() == first[0]["input_ids"].tolist()
    assert builds(folder) == 2
    assert only(folder, "cached_train_*_16_rte_*.safetensors")
    assert only(folder, "cached_dev_*_5_rte_*.safetensors")
    assert not list(folder.glob("*.part"))


def with_side(folder):
    tokenizer = make_tokenizer(folder)
    tokenizer.truncation_side = "left"
    return tokenizer


def without_types(folder):
    tokenizer = make_tokenizer(folder)
    tokenizer.model_input_names = ["input_ids"]
    return tokenizer


def as_test_split(folder):
    write(folder, "test", (folder / "train.tsv").read_text())
    return {"split": "test"}


CHANGES = {
    "length": lambda _: {"max_length": 17},
    "vocabulary": lambda f: {"tokenizer": make_tokenizer(f, ID | {"boat": A, "a": BOAT})},
    "case": lambda f: {"tokenizer": make_tokenizer(f, do_lower_case=False)},
    "truncation side": lambda f: {"tokenizer": with_side(f)},
    "input names": lambda f: {"tokenizer": without_types(f)},
    "labels": lambda _: {"glue_task": dataclasses.replace(RTE, labels=RTE.labels[::-1])},
    "split": as_test_split,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_argument_never_meets_a_stale_cache(folder, change):
    load_rte(folder)
    changed = CHANGES[change](folder)
    features = load_rte(folder, **changed)
    assert builds(folder) == 2
    assert features.digest == load_rte(folder, **changed, cache_dir=folder / "fresh").digest
    load_rte(folder)
    load_rte(folder, **changed)
    assert builds(folder) == 3
    assert len({path.stem[-12:] for path in folder.glob("*.safetensors")}) == 2  # keys


@pytest.mark.parametrize("what", ["tokenizers.__version__", "transformers.__version__", "FORMAT"])
def test_another_version_never_meets_a_stale_cache(folder, monkeypatch, what):
    load_rte(folder)
    monkeypatch.setattr(f"common.data.features.{what}", "another")
    load_rte(folder)
    assert builds(folder) == 2


def test_a_changed_data_file_never_meets_a_stale_cache(folder):
    load_rte(folder)
    path = folder / "train.tsv"
    before = path.stat()
    path.write_text(path.read_text().replace("boat", "sail"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as long, and as old
    assert load_rte(folder)[0]["input_ids"].tolist() == [CLS, A, SAIL, SEP, SAIL, ED, SEP]


def test_overwrite_rebuilds_the_cache(folder):
    load_rte(folder)
    load_rte(folder, overwrite=True)
    assert builds(folder) == 2


def test_a_damaged_cache_is_rebuilt(folder):
    digest = load_rte(folder).digest
    cache = only(folder, "*.safetensors")
    whole = cache.read_bytes()
    for count, damaged in enumerate([b"", whole[:8], whole[: len(whole) // 2], whole[:-1]], 1):
        cache.write_bytes(damaged)
        assert load_rte(folder).digest == digest
        assert builds(folder) == 1 + count
        assert cache.read_bytes() == whole


def test_no_wrong_byte_in_a_cache_goes_unnoticed(folder):
    load_rte(folder)
    cache = only(folder, "*.safetensors")
    sha = hashlib.sha256((folder / "train.tsv").read_bytes()).hexdigest()
    key = features.cache_key(RTE, "train", sha, make_tokenizer(folder), 16)
    whole = cache.read_bytes()
    assert features.load(cache, key)
    assert features.load(cache, key[::-1]) is None  # a cache under a name that is not its own
    for place in range(len(whole)):
        cache.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert features.load(cache, key) is None, place


def test_without_a_folder_to_write_to_there_is_no_cache(folder, caplog):
    no_folder = folder / "train.tsv" / "cache"
    for count in (1, 2):
        assert len(load_rte(folder, cache_dir=no_folder)) == 2
        assert builds(folder) == count
    assert not caplog.records


def test_a_full_disk_costs_the_cache_and_nothing_else(folder, monkeypatch):
    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    assert len(load_rte(folder)) == 2
    assert not list(folder.glob("*.part")) + list(folder.glob("*.safetensors"))


def test_of_workers_that_overwrite_together_the_later_take_the_first_one_s(folder, monkeypatch):
    load_rte(folder)
    real = filelock.FileLock

    def lock_after_another_worker(*args, **kwargs):
        monkeypatch.setattr(filelock, "FileLock", real)
        load_rte(folder, overwrite=True)
        return real(*args, **kwargs)

    monkeypatch.setattr(filelock, "FileLock", lock_after_another_worker)
    load_rte(folder, overwrite=True)
    assert builds(folder) == 2


def test_a_lock_that_is_never_released_is_waited_for_until_a_timeout(folder, caplog):
    load_rte(folder)
    cache = only(folder, "*.safetensors")
    code = (
        "import filelock, sys\n"
        "with filelock.FileLock(sys.argv[1]): print('held', flush=True), sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, f"{cache}.lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert select.select([holder.stdout], [], [], DEADLINE)[0]
        assert holder.stdout.readline() == b"held\n"
        load_rte(folder)  # what is cached already is read without a lock
        assert builds(folder) == 1
        cache.unlink()
        start = time.monotonic()
        assert len(load_rte(folder, lock_seconds=0.3)) == 2
        assert 0.3 <= time.monotonic() - start < 10
    finally:
        holder.communicate(timeout=DEADLINE)
    assert builds(folder) == 2
    assert not cache.exists()
    assert "another process" in caplog.text


@pytest.mark.slow
def test_a_builder_that_makes_progress_is_waited_for_beyond_the_timeout(folder, caplog):
    load_rte(folder)
    cache = only(folder, "*.safetensors")
    cache.unlink()
    code = (
        "import filelock, pathlib, sys, time\n"
        "with filelock.FileLock(sys.argv[1] + '.lock'):\n"
        "    print('held', flush=True)\n"
        "    for _ in range(120):\n"
        "        pathlib.Path(sys.argv[1] + '.progress').write_text('')\n"
        "        time.sleep(0.05)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, cache], stdout=subprocess.PIPE)
    try:
        assert select.select([holder.stdout], [], [], DEADLINE)[0]
        assert holder.stdout.readline() == b"held\n"
        load_rte(folder, lock_seconds=2)
    finally:
        holder.communicate(timeout=DEADLINE)
    assert "another process" not in caplog.text
    assert cache.exists()
    assert not list(folder.glob("*.progress"))


def test_a_file_that_changes_while_it_is_read_is_refused(folder, monkeypatch):
    lines_of, read = glue.lines_of, []

    def replaced_between(path):
        if read:
            write(folder, "train", path.read_text().replace("A boat", "a sail"))
        read.append(path)
        return lines_of(path)

    monkeypatch.setattr(glue, "lines_of", replaced_between)
    with pytest.raises(UserError, match=r"train\.tsv: changed while it was being read"):
        load_rte(folder)
    assert not list(folder.glob("*.safetensors"))


def test_a_file_is_read_as_it_is_needed():
    lines = iter([b"index\tsentence1\tsentence2\tlabel\n", *[b"0\ta\tb\tentailment\n"] * 9])
    examples = glue.parse(RTE, "train", Path("train.tsv"), lines)
    assert next(examples).text_a == "a"
    assert len(list(lines)) == 8


PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["torch", "transformers.models.bert"])  # once, not in each child


@pytest.fixture
def spawn():
    """Starts processes, and lets none of them outlive the test."""
    processes = []

    def start(target, *args):
        processes.append(PROCESSES.Process(target=target, args=args, daemon=True))
        processes[-1].start()
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.join(DEADLINE)


def load_together(folder, barrier, digests):
    tokenizer = make_tokenizer(folder)
    barrier.wait(DEADLINE)
    digests.put(load_rte(folder, tokenizer=tokenizer).digest)


def test_of_workers_that_start_together_one_builds_and_all_have_the_same(folder, spawn):
    rows = [f"{i}\t{'a boat ' * 40}\tsailed\tentailment\n" for i in range(3000)]
    write(folder, "train", "index\tsentence1\tsentence2\tlabel\n" + "".join(rows))
    barrier, digests = PROCESSES.Barrier(4), PROCESSES.Queue()
    workers = [spawn(load_together, folder, barrier, digests) for _ in range(4)]
    results = {digests.get(timeout=DEADLINE) for _ in workers}
    for worker in workers:
        worker.join(DEADLINE)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert builds(folder) == 1
    assert results == {load_rte(folder).digest}
    assert builds(folder) == 1


def hang_while_writing(folder, pipe):
    def half_written(file):
        os.ftruncate(file, 100)
        pipe.send("writing")
        pipe.recv()

    os.fsync = half_written
    load_rte(folder)


def test_a_writer_killed_halfway_writes_nothing_that_is_trusted(folder, spawn):
    pipe, childs_end = PROCESSES.Pipe()
    writer = spawn(hang_while_writing, folder, childs_end)
    assert pipe.poll(DEADLINE)
    unfinished = only(folder, "*.part")
    assert unfinished.stat().st_size == 100
    with pytest.raises(filelock.Timeout):
        filelock.FileLock(only(folder, "*.lock"), timeout=0).acquire()
    writer.kill()  # SIGKILL: no handler of its own runs
    writer.join(DEADLINE)
    assert writer.exitcode == -9
    assert not list(folder.glob("*.safetensors"))
    assert len(load_rte(folder)) == 2
    assert not unfinished.exists()
    assert builds(folder) == 2
    load_rte(folder)
    assert builds(folder) == 2
