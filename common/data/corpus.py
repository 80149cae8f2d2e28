"""A corpus as BERT is pre-trained on it: token ids in files that are mapped into memory.

    corpus.json                   what follows, counted; its digest; written last
    vocab.txt                     WordPiece tokens, one per line
    shard-00000.tokens.bin        all token ids: uint16, or uint32 for more than 65,536 tokens
    shard-00000.sentences.bin     int64: where each sentence begins in the tokens; their number
    shard-00000.documents.bin     int64: where each document begins in the sentences; their number

Nothing in a folder without corpus.json is a corpus.
"""

import hashlib
import json
from pathlib import Path

from common.errors import UserError

import numpy as np

FORMAT = 1
PARTS = ("tokens", "sentences", "documents")


def part_path(folder: Path, shard: int, part: str) -> Path:
    """The file of a shard's tokens, sentences or documents."""
    return folder / f"shard-{shard:05}.{part}.bin"


def token_type(vocab_size: int) -> np.dtype:
    """The type of a token id on disk."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def map_part(folder: Path, shard: int, part: str, dtype) -> np.ndarray:
    """A shard's array, mapped into memory; an empty file cannot be."""
    path = part_path(folder, shard, part)
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.zeros(0, dtype)


class Shard:
    """One shard's arrays: `sentences` and `documents` are offsets, one more than there are."""

    def __init__(self, folder: Path, number: int, vocab_size: int):
        self.tokens = map_part(folder, number, "tokens", token_type(vocab_size))
        self.sentences = map_part(folder, number, "sentences", "<i8")
        self.documents = map_part(folder, number, "documents", "<i8")

    def sizes(self) -> dict[str, int]:
        """How many tokens, sentences and documents it holds."""
        sizes = [len(self.tokens), len(self.sentences) - 1, len(self.documents) - 1]
        return dict(zip(PARTS, sizes, strict=True))


class Corpus:
    """A folder that task8/prepare.py has written. `digest` is equal only for equal corpora."""

    def __init__(self, folder: str | Path):
        """Open the folder; raises UserError if it holds no corpus, or a damaged one."""
        self.folder = Path(folder)
        self.facts = read_facts(self.folder)
        self.digest: str = self.facts["digest"]
        self.vocab_size: int = self.facts["vocab_size"]
        try:
            numbers = range(len(self.facts["shards"]))
            self.shards = [Shard(self.folder, number, self.vocab_size) for number in numbers]
        except (OSError, ValueError) as error:
            raise damaged(self.folder, error) from None
        if [shard.sizes() for shard in self.shards] != self.facts["shards"]:
            raise damaged(self.folder, "a shard has another size than corpus.json has it")


def read_facts(folder):
    """What corpus.json holds; raises UserError where there is none of this format."""
    try:
        facts = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{folder}: is not a prepared corpus, as it has no corpus.json; "
            f"`python task8/prepare.py --output_dir {folder}` makes one"
        ) from None
    except (OSError, ValueError) as error:
        raise damaged(folder, error) from None
    if facts.get("format") != FORMAT:
        raise damaged(folder, f"its format is {facts.get('format')}, not {FORMAT}")
    return facts


def damaged(folder, reason):
    """The error for a corpus that cannot be used."""
    return UserError(
        f"{folder}: this corpus cannot be read ({reason}); "
        "prepare it again with task8/prepare.py --overwrite_output_dir"
    )


def describe(folder: Path, vocab: bytes, shards: int, source: dict) -> dict:
    """What corpus.json holds of a folder whose other files are there.

    `unigram_entropy`, in nats, is the loss of a model that knows nothing but how frequent each
    token is: a masked language model has learned from context only below it.
    """
    digest = hashlib.sha256(vocab)
    vocab_size = vocab.count(b"\n")
    counts, sizes = np.zeros(vocab_size, np.int64), []
    for number in range(shards):
        shard = Shard(folder, number, vocab_size)
        sizes.append(shard.sizes())
        for part in PARTS:
            digest.update(getattr(shard, part))
        counts += count_tokens(shard.tokens, vocab_size)
    shares = counts[counts > 0] / counts.sum()
    return {
        "format": FORMAT,
        "vocab_size": vocab_size,
        **{part: sum(size[part] for size in sizes) for part in PARTS},
        "unigram_entropy": round(float(-(shares * np.log(shares)).sum()), 4),
        "source": source,
        "shards": sizes,
        "digest": digest.hexdigest(),
    }


def count_tokens(tokens, vocab_size, at_once=1 << 22):
    """How often each token occurs."""
    counts = np.zeros(vocab_size, np.int64)
    for at in range(0, len(tokens), at_once):
        counts += np.bincount(tokens[at : at + at_once], minlength=vocab_size)
    return counts
