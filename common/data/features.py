"""Examples as token ids, cached in a file that is used only if it is exactly right."""

import contextlib
import hashlib
import itertools
import json
import logging
import os
import re
import sys
from array import array
from pathlib import Path

from common.data import glue
from common.errors import UserError
from common.files import whole

import filelock
import safetensors.torch
import tokenizers
import torch
import transformers
from tqdm import tqdm
from transformers.tokenization_utils_base import TruncationStrategy
from transformers.utils import PaddingStrategy

FORMAT = 1  # of the cache; raise it whenever the same file and tokenizer would give other tensors
LOCK_SECONDS = 120.0  # how long to wait for a process that builds the cache without progress
CHUNK = 4_000  # examples tokenized at a time, at 10 kB each while they are
SHOWN = 20_000  # rows from which on the progress is shown
log = logging.getLogger(__name__)


class Features(torch.utils.data.Dataset):
    """A split's token ids: item i is a dict of tensors of example i, as long as it is.

    `input_ids` and, for tokenizers that have them, `token_type_ids` are int64 of shape (length,);
    `labels` is a scalar, int64 or for a regression float32; the test splits have none. `digest`
    is the SHA-256 of all this in hex: equal on two machines only if both use the same data.
    """

    def __init__(self, tensors: dict[str, torch.Tensor]):
        """Keep every example's ids in one flat tensor per name; `offsets` says where each is."""
        self.tensors = tensors
        self.digest = digest(tensors)
        self.offsets = tensors["offsets"].tolist()
        self.ragged = [name for name in tensors if name not in ("offsets", "labels")]

    def __len__(self):
        return len(self.offsets) - 1

    def head(self, count):
        """The Features of the first examples."""
        tensors = {
            name: self.tensors[name][: self.offsets[: count + 1][-1]] for name in self.ragged
        }
        tensors["offsets"] = self.tensors["offsets"][: count + 1]
        if "labels" in self.tensors:
            tensors["labels"] = self.tensors["labels"][:count]
        return Features(tensors)

    def __getitem__(self, i):
        i = range(len(self))[i]  # -1 is the last, and IndexError is raised past it
        place = slice(self.offsets[i], self.offsets[i + 1])
        item = {name: self.tensors[name][place].long() for name in self.ragged}
        if "labels" in self.tensors:
            item["labels"] = self.tensors["labels"][i]
        return item


def load_features(  # noqa: PLR0913 what the features depend on
    glue_task: glue.GlueTask,
    data_dir,
    split,
    tokenizer,
    max_length,
    cache_dir=None,
    overwrite=False,
    lock_seconds=LOCK_SECONDS,
) -> Features:
    """Tokenize a split, or load what an earlier run or another worker has cached.

    The cache is a file in `cache_dir`, or else `data_dir`, if that can be written to. Of workers
    that start together one builds it and the others wait, until it makes no progress for
    `lock_seconds`; then each tokenizes for itself. `overwrite` rebuilds the cache. Raises UserError
    for what is wrong with the data.
    """
    path = glue.find_file(glue_task, data_dir, split)
    sha, rows = hashlib.sha256(), 0
    for _ in hashing(glue.lines_of(path), sha):
        rows += 1
    key = cache_key(glue_task, split, sha.hexdigest(), tokenizer, max_length)
    model = re.sub(r"[^\w.-]+", "-", Path(tokenizer.name_or_path).name)[:40] or "tokenizer"
    name = f"cached_{split}_{model}_{max_length}_{glue_task.name.lower()}_{key[:12]}.safetensors"
    cache = Path(cache_dir or data_dir) / name

    outdated = identity(cache) if overwrite else None
    if not overwrite and (features := load(cache, key)):
        return features
    with contextlib.ExitStack() as stack:
        try:
            wait_for_lock(stack, cache, lock_seconds)
        except filelock.Timeout:
            log.warning("%s: still locked by another process; continuing without the cache", cache)
            cache = None
        except (OSError, NotImplementedError):  # a folder that cannot be written to, or locked
            cache = None
        # Another worker may have built the cache while this one waited.
        if cache and identity(cache) != outdated and (features := load(cache, key)):
            return features
        with Progress(cache, path, rows) as progress:
            again = hashlib.sha256()
            examples = glue.parse(glue_task, split, path, hashing(glue.lines_of(path), again))
            features = Features(tokenize(progress.chunks(examples), tokenizer, max_length))
        if again.digest() != sha.digest():
            raise UserError(f"{path}: changed while it was being read; start again")
        if cache:
            store(cache, key, features)
        return features


def wait_for_lock(stack, cache, seconds):
    """Hold a cache's lock until `stack` closes; Timeout after so long without progress."""
    while True:
        seen = identity(progress_file(cache))
        try:
            stack.enter_context(filelock.FileLock(f"{cache}.lock", timeout=seconds))
            return
        except filelock.Timeout:
            if identity(progress_file(cache)) == seen:
                raise


def progress_file(cache):
    """The file that a builder of the cache touches after every chunk."""
    return cache.with_name(f"{cache.name}.progress")


class Progress:
    """Shows, to the user and to the workers that wait, how far the builder of a cache is."""

    def __init__(self, cache, path, rows):
        self.file = progress_file(cache) if cache else None
        self.bar = tqdm(
            total=rows,
            desc=f"tokenizing {path.name}",
            unit="row",
            leave=False,
            disable=rows < SHOWN,
            mininterval=0.1 if sys.stderr.isatty() else 10,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.bar.close()
        if self.file:
            with contextlib.suppress(OSError):
                self.file.unlink()

    def chunks(self, examples):
        """Yield `examples` in lists of CHUNK, noting each."""
        while chunk := list(itertools.islice(examples, CHUNK)):
            if self.file:
                with contextlib.suppress(OSError):  # a full disk, say
                    self.file.write_text("")
            yield chunk
            self.bar.update(len(chunk))


def hashing(lines, sha):
    """Yield lines, each once it has gone into a hash."""
    for line in lines:
        sha.update(line)
        yield line


def tokenize(chunks, tokenizer, max_length):
    """The tensors of Features: of each example at most `max_length` tokens, cut longest first."""
    assert max_length > tokenizer.num_special_tokens_to_add(pair=True)  # or nothing is cut
    names = [x for x in ("input_ids", "token_type_ids") if x in tokenizer.model_input_names]
    flat = {name: array("i") for name in names}  # grows in place, unlike a list of tensors
    offsets, labels = array("q", [0]), []
    for chunk in chunks:
        text_a, text_b, label = zip(*chunk, strict=True)
        labels += label
        texts = text_a if text_b[0] is None else zip(text_a, text_b, strict=True)
        for row in encode(tokenizer, list(texts), max_length):
            ids = row.ids
            offsets.append(offsets[-1] + len(ids))
            flat["input_ids"].extend(ids)
            if "token_type_ids" in flat:
                flat["token_type_ids"].extend(row.type_ids)
    tensors = {name: torch.frombuffer(flat[name], dtype=torch.int32) for name in names}
    tensors["offsets"] = torch.frombuffer(offsets, dtype=torch.int64)
    if labels[0] is not None:
        tensors["labels"] = torch.tensor(labels)
    return tensors


def encode(tokenizer, texts, max_length):
    """What a tokenizer makes of texts or pairs, without the lists that a call of it returns.

    These take as long as tokenizing itself.
    """
    tokenizer.set_truncation_and_padding(
        padding_strategy=PaddingStrategy.DO_NOT_PAD,
        truncation_strategy=TruncationStrategy.LONGEST_FIRST,
        max_length=max_length,
        stride=0,
        pad_to_multiple_of=None,
        padding_side=None,
    )
    tokenizer.backend_tokenizer.encode_special_tokens = tokenizer.split_special_tokens
    return tokenizer.backend_tokenizer.encode_batch_fast(texts)


def cache_key(glue_task, split, file_digest, tokenizer, max_length):
    """The sha256 of everything that the features depend on."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    del state["truncation"], state["padding"]  # set by the last call; every call sets them
    sources = [
        FORMAT,
        [tokenizers.__version__, transformers.__version__],
        [repr(glue_task), split, file_digest, max_length],
        [type(tokenizer).__name__, tokenizer.model_input_names, tokenizer.truncation_side],
        [tokenizer.split_special_tokens, state],
    ]
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()


def digest(tensors):
    """The sha256 of named tensors, in hex."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        sha.update(tensor.numpy())
    return sha.hexdigest()


def seal(key, features):
    """What a cache file must carry to be trusted: the sha256 of its key and content."""
    return list(hashlib.sha256(f"{key} {features.digest}".encode()).digest())


def load(cache, key):
    """The features in a cache file, or None if it is missing or cannot be trusted."""
    try:
        tensors = safetensors.torch.load(cache.read_bytes())  # not mapped: on NFS it may disappear
        found = tensors.pop("seal").tolist()
        features = Features(tensors)
    except (OSError, KeyError, safetensors.SafetensorError):
        return None
    return features if found == seal(key, features) else None


def store(cache, key, features):
    """Write a cache file whole or not at all; the lock on it must be held."""
    tensors = features.tensors | {"seal": torch.tensor(seal(key, features))}
    with contextlib.suppress(OSError, safetensors.SafetensorError), whole(cache) as part:
        part.touch()  # a full disk, say, costs the cache alone: the features are in memory
        mode = part.stat().st_mode
        safetensors.torch.save_file(tensors, part)  # makes it readable by its owner alone
        part.chmod(mode)
        with part.open("r+b") as file:
            os.fsync(file.fileno())


def identity(path):
    """Which file is at a path, or None: another one after every `os.replace`."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns
    return None
