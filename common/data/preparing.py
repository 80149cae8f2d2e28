"""Makes a corpus from text, in steps that can be stopped at any moment and gone on with.

Each step writes its file whole, and is passed over where that file is there:

    preparing.json      of what text, with which settings; the steps of another are removed
    vocab.txt           all text was counted
    shard-00000.json    a shard's arrays are there; where in the text the next one begins
    corpus.json         all is there; the files .json above are removed
"""

import json
import os
import sys
from collections import Counter
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from common.data.corpus import PARTS, describe, part_path, read_facts, token_type
from common.data.encoding import Encoder, WordCounts
from common.data.parallel import processes
from common.data.raw_text import BLOCK_BYTES, Position, digest_of, find_texts, read_documents
from common.data.wordpiece import train_wordpiece
from common.errors import UserError
from common.files import whole, write_whole

import filelock
import numpy as np
import tokenizers
from tqdm import tqdm

SHOWN_BYTES = 20_000_000  # of text from which on progress is shown
PARALLEL_BYTES = 20_000_000  # of text from which on several processes work on it
MOST_PROCESSES = 4  # each remembers words, and needs memory for them
BLOCKS_PER_SHARD = 16  # at least, so that shards are about equal
STEPS = ("preparing.json", "shard-*.json")  # removed once corpus.json is there
FORMAT = 1  # raise it whenever the same text would give other files


def prepare(args, paths: list[str]) -> dict:
    """Make the corpus of --output_dir from files and folders; returns what corpus.json holds.

    Raises UserError for text that cannot be used, and where the folder holds another corpus.
    """
    folder = Path(args.output_dir)
    files = find_texts(paths)
    size = sum(path.stat().st_size for path in files)
    count = min(MOST_PROCESSES, os.cpu_count() or 1) if size >= PARALLEL_BYTES else 1
    try:
        with filelock.FileLock(folder / "preparing.lock", timeout=0), processes(count) as work_on:
            return Preparation(args, files, size, work_on).run()
    except filelock.Timeout:
        raise UserError(
            f"--output_dir {folder}: another process is preparing a corpus there"
        ) from None


def words_of(text: str) -> Counter:
    """How often each word occurs in a text."""
    return Counter(text.split())


@cache
def encoder_of(vocabulary: bytes) -> Encoder:
    """The encoder with the tokens of a vocab.txt, which remembers words from text to text."""
    tokens = vocabulary.decode().split("\n")[:-1]
    return Encoder(tokens, token_type(len(tokens)))


def encoded(vocabulary: bytes, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `Encoder.encode` returns for a text."""
    return encoder_of(vocabulary).encode(text)


class Preparation:
    """The making of one corpus; `work_on` is as `processes` yields it."""

    def __init__(self, args, files, size, work_on):
        self.args = args
        self.files = files
        self.folder = Path(args.output_dir)
        self.size = size
        self.work_on = work_on
        per_block = self.size // (args.shards * BLOCKS_PER_SHARD)
        self.block_bytes = max(1024, min(BLOCK_BYTES, per_block))

    def run(self):
        """Do the steps that are left."""
        with self.bar("reading") as update:
            digest = digest_of(self.files, update)
        source = {"files": len(self.files), "bytes": self.size, "sha256": digest}
        source |= {"vocab_size": self.args.vocab_size, "shards": self.args.shards}
        source |= {"version": FORMAT, "tokenizers": tokenizers.__version__}
        if self.is_there(source):
            self.remove(*STEPS)
            return read_facts(self.folder)
        self.start(source)
        if not (self.folder / "vocab.txt").exists():
            self.make_vocabulary()
        vocab = (self.folder / "vocab.txt").read_bytes()
        shards = self.make_shards(partial(encoded, vocab))
        facts = describe(self.folder, vocab, shards, source)
        if facts["documents"] < 2:
            raise UserError(
                "--corpus: the text has fewer than two documents of at least two words; separate "
                "documents by blank lines"
            )
        write_whole(self.folder / "corpus.json", json.dumps(facts, indent=1) + "\n")
        self.remove(*STEPS)
        return facts

    def is_there(self, source):
        """Whether the folder has this corpus already; raises UserError if it has another one."""
        if self.args.overwrite_output_dir or not (self.folder / "corpus.json").exists():
            return False
        there = read_facts(self.folder)["source"]
        other = [name for name in source if source[name] != there.get(name)]
        if other:
            raise UserError(
                f"--output_dir {self.folder}: holds a corpus that differs in {', '.join(other)}; "
                "choose another folder, or add --overwrite_output_dir to replace it"
            )
        return True

    def start(self, source):
        """Keep the finished steps if they are of the same text and settings; else remove them."""
        state = self.folder / "preparing.json"
        text = json.dumps(source, indent=1) + "\n"
        self.remove("corpus.json")
        if not state.exists() or state.read_text() != text:
            self.remove("preparing.json", "vocab.txt", "shard-*")
            write_whole(state, text)
        self.remove("*.part")

    def remove(self, *patterns):
        """Remove files of the folder."""
        for pattern in patterns:
            for path in self.folder.glob(pattern):
                path.unlink()

    def make_vocabulary(self):
        """Count all words, and write the vocabulary."""
        counts = WordCounts()
        with self.bar("counting words") as update:
            begin = 0
            texts = read_documents(self.files, Position(), self.block_bytes)
            for words, end in self.work_on(words_of, texts):
                counts.add(words)
                update(self.place(end) - begin)
                begin = self.place(end)
        words = counts.split()
        if not words:
            raise UserError(f"--corpus: no words in {len(self.files)} files; give plain text")
        tokens = train_wordpiece(words, self.args.vocab_size)
        write_whole(self.folder / "vocab.txt", "\n".join([*tokens, ""]))

    def make_shards(self, encode):
        """Write the shards that are not there yet; returns how many there are in all."""
        number, position = 0, Position()
        with self.bar("encoding") as update:
            while (begin := self.place(position)) < self.size:
                done = self.folder / f"shard-{number:05}.json"
                if done.exists():
                    position = Position(*json.loads(done.read_text()))
                    update(self.place(position) - begin)
                else:
                    until = self.size * (number + 1) // self.args.shards
                    position = self.write_shard(encode, number, position, until, update)
                    write_whole(done, json.dumps(position) + "\n")
                number += 1
        return number

    def write_shard(self, encode, number, start, until, update):
        """Write the documents from `start` to `until`, in bytes of all; returns where it ended."""
        sentences, documents, end = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)], start
        with whole(part_path(self.folder, number, PARTS[0])) as part, part.open("wb") as file:
            texts = self.texts_until(until, start)
            for (ids, lengths, counts), after in self.work_on(encode, texts):
                file.write(ids.tobytes())
                sentences.append(lengths)
                documents.append(counts)
                update(self.place(after) - self.place(end))
                end = after
            file.flush()
            os.fsync(file.fileno())
        for name, lengths in zip(PARTS[1:], (sentences, documents), strict=True):
            offsets = np.cumsum(np.concatenate(lengths)).astype("<i8")
            write_whole(part_path(self.folder, number, name), offsets.tobytes())
        return end

    def texts_until(self, until, start):
        """Read documents from `start` on, up to the first end of a block at `until` or after it."""
        for text, end in read_documents(self.files, start, self.block_bytes):
            yield text, end
            if self.place(end) >= until:
                return

    def place(self, position):
        """A position in bytes of all text."""
        return sum(path.stat().st_size for path in self.files[: position.file]) + position.byte

    @contextmanager
    def bar(self, what):
        """A progress bar over all text; yields what to call with the bytes of each part."""
        with tqdm(
            total=self.size,
            desc=what,
            unit="B",
            unit_scale=True,
            leave=False,
            disable=self.size < SHOWN_BYTES,
            mininterval=0.1 if sys.stderr.isatty() else 10,
        ) as bar:
            yield bar.update
