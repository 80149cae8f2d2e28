"""Batches for BERT's pre-training: pairs of sentences with masked tokens, drawn as they are read.

    corpus = Corpus(args.data_dir)
    tokenizer = load_tokenizer(corpus)
    splits = {"train": PretrainingRows(corpus, args.max_seq_length, args.seed)}
    batches = PretrainingBatches(splits, tokenizer, args, world)       # as TrainingBatches
    for step in batches.epoch(1):            # or epoch(1, start=position), to go on from there
        for batch, weight in step:
            model(**batch)                   # BertForPreTraining

What is drawn depends on (seed, epoch, row) alone: every epoch has other pairs and masks, and a run
that is resumed, or has another number of workers, reads the same.
"""

import bisect
from collections.abc import Iterator

from common.data.corpus import Corpus
from common.data.loader import EqualParts, StepBatches
from common.data.wordpiece import CLS, MASK, PAD, SEP, SPECIAL
from common.errors import UserError

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    BertTokenizerFast,  # pyright: ignore[reportAttributeAccessIssue]
)

MASKED = 0.15  # of the tokens; of those 80 % become [MASK], 10 % any token, 10 % stay
IGNORED = -100  # the label of a token that is not predicted
PADDING = {"input_ids": PAD, "token_type_ids": 0, "attention_mask": 0, "labels": IGNORED}


def load_tokenizer(corpus: Corpus):
    """The tokenizer of a corpus; it lower-cases, as bert-base-uncased's."""
    tokens = (corpus.folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    return BertTokenizerFast(vocab=vocabulary, do_lower_case=True, model_max_length=512)


class PretrainingRows:
    """A corpus as rows: each is some consecutive sentences of one document, at least two.

    Together the rows have every sentence; each has as many as fit into `max_length` tokens.
    `digest`, `offsets` and the length are as those of Features.
    """

    def __init__(self, corpus: Corpus, max_length: int, seed: int):
        if corpus.facts["documents"] < 2:
            raise UserError(
                f"{corpus.folder}: one document is not enough; half of all pairs need "
                "a sentence of another one"
            )
        self.corpus = corpus
        self.budget = max_length - 3  # [CLS] A [SEP] B [SEP]
        self.seed = seed
        self.digest = corpus.digest
        self.offsets = [0, corpus.facts["tokens"]]
        rows = [rows_of(shard, self.budget) for shard in corpus.shards]
        self.first_rows = [0, *np.cumsum([len(starts) for starts, _ in rows]).tolist()]
        self.starts = np.concatenate([starts for starts, _ in rows])
        self.ends = np.concatenate([ends for _, ends in rows])
        documents = [shard["documents"] for shard in corpus.facts["shards"]]
        self.first_documents = [0, *np.cumsum(documents).tolist()]

    def __len__(self):
        return len(self.starts)

    def order(self, epoch: int) -> np.ndarray:
        """The rows in the order in which an epoch goes through them."""
        return np.random.default_rng((self.seed, epoch)).permutation(len(self))

    def example(self, epoch: int, row: int) -> dict[str, torch.Tensor]:
        """A row's pair and masks in an epoch: tensors of shape (length,), int64.

        `next_sentence_label` is a scalar: 0 if B follows A, 1 if B is from another document.
        """
        rng = np.random.default_rng((self.seed, epoch, row))
        a, b, follows = self.pair(rng, row)
        a, b = truncated(rng, a, b, self.budget)
        ids = np.concatenate(([CLS], a, [SEP], b, [SEP])).astype(np.int64)
        segments = np.repeat([0, 1], (len(a) + 2, len(b) + 1))
        ids, labels = masked(rng, ids, self.corpus.vocab_size)
        return {
            "input_ids": torch.from_numpy(ids),
            "token_type_ids": torch.from_numpy(segments),
            "attention_mask": torch.ones(len(ids), dtype=torch.int64),
            "labels": torch.from_numpy(labels),
            "next_sentence_label": torch.tensor(int(not follows)),
        }

    def pair(self, rng, row):
        """(tokens of A, tokens of B, whether B follows A): it does in half of the cases.

        Else B is as many sentences of another document, where it has so many; and not its
        beginning if it can be helped, as what follows A is none.
        """
        number = bisect.bisect(self.first_rows, row) - 1
        shard = self.corpus.shards[number]
        start, end = int(self.starts[row]), int(self.ends[row])
        middle = start + int(rng.integers(1, end - start))
        a = tokens_of(shard, start, middle)
        if rng.random() < 0.5:
            return a, tokens_of(shard, middle, end), True
        own = self.first_documents[number]
        own += int(np.searchsorted(shard.documents, start, side="right")) - 1
        other = int(rng.integers(self.first_documents[-1] - 1))
        return a, self.sentences(rng, other + (other >= own), end - middle), False

    def sentences(self, rng, document, count):
        """The tokens of at most `count` consecutive sentences of a document."""
        number = bisect.bisect(self.first_documents, document) - 1
        shard = self.corpus.shards[number]
        at = document - self.first_documents[number]
        first, last = (int(each) for each in shard.documents[at : at + 2])
        if last - first > count:
            first += int(rng.integers(1, last - first - count + 1))
        return tokens_of(shard, first, min(first + count, last))


def rows_of(shard, budget):
    """(first sentences, last sentences + 1) of a shard's rows, of at most `budget` tokens.

    Two sentences that are longer are a row, too. A document's last row begins a sentence earlier
    where it would have only one.
    """
    sentences, documents = np.asarray(shard.sentences), np.asarray(shard.documents)
    ends = np.searchsorted(sentences, sentences[:-1] + budget, side="right") - 1
    ends = np.maximum(ends, np.arange(len(ends)) + 2)
    ends = np.minimum(ends, np.repeat(documents[1:], np.diff(documents)))
    following, starts, at = ends.tolist(), [], 0
    while at < len(following):
        starts.append(at)
        at = following[at]
    starts = np.array(starts, np.int64)
    ends = ends[starts]
    return starts - (ends - starts < 2), ends


def tokens_of(shard, start, end):
    """The tokens of a shard's sentences from `start` to before `end`."""
    return shard.tokens[shard.sentences[start] : shard.sentences[end]]


def truncated(rng, a, b, budget):
    """A and B cut to `budget` tokens together, the longer first, each at its beginning or end."""
    excess = len(a) + len(b) - budget
    if excess <= 0:
        return a, b
    half = budget // 2
    keep_a = len(a) if len(a) <= half else budget - min(len(b), half)
    return cut(rng, a, keep_a), cut(rng, b, budget - keep_a)


def cut(rng, tokens, length):
    """So many tokens, from the beginning or from the end."""
    return tokens[:length] if rng.random() < 0.5 else tokens[len(tokens) - length :]


# SOLUTION(task8): choose 15 % of the words; 80 % of these become [MASK], 10 % any token
def masked(rng, ids, vocab_size):
    """(ids with masks, labels) of a row: 15 % of its tokens are to be predicted, at least one.

    Special tokens never are. The number is rounded up or down at random, so that the mean is 15 %.
    """
    candidates = np.flatnonzero(ids >= len(SPECIAL))
    count = max(1, int(MASKED * len(candidates) + rng.random()))
    chosen = rng.permutation(candidates)[:count]
    labels = np.full_like(ids, IGNORED)
    labels[chosen] = ids[chosen]
    ids, kind = ids.copy(), rng.random(len(chosen))
    ids[chosen[kind < 0.8]] = MASK
    other = chosen[kind >= 0.9]
    ids[other] = rng.integers(len(SPECIAL), vocab_size, len(other))
    return ids, labels


class PretrainingBatches(EqualParts):
    """This rank's part of every step: `epoch(n)` goes through the rows once, in a new order.

    In step k all ranks together read the same rows, whatever their number, if the total batch is
    the same. Rows that would not fill a last step are left out, others in every epoch.
    """

    def __init__(self, splits, tokenizer, args, world):
        del tokenizer  # the rows have ids already
        self.rows: PretrainingRows = splits["train"]
        self.rank = world.rank
        self.workers = world.size
        self.device = world.device
        self.micro = args.per_gpu_train_batch_size
        self.own = self.micro * args.gradient_accumulation_steps
        if not len(self):
            raise UserError(
                f"{self.rows.corpus.folder}: its {len(self.rows)} rows are fewer than a step's "
                f"{self.own * world.size}; take a smaller batch, or more text"
            )

    def __len__(self):
        """Optimizer steps per epoch."""
        return len(self.rows) // (self.own * self.workers)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[StepBatches]:
        """Yield the StepBatches of every optimizer step from `start` on; none before is read."""
        order, total = self.rows.order(epoch), self.own * self.workers
        for step in range(start, len(self)):
            rows = order[step * total : (step + 1) * total][self.rank :: self.workers]
            parts = [rows[at : at + self.micro] for at in range(0, len(rows), self.micro)]
            batches = [(self.collate(epoch, part), len(part) / len(rows)) for part in parts]
            yield StepBatches(batches, len(rows), total)

    def collate(self, epoch, rows):
        """The batch of some rows on the device, padded to its longest: (rows, tokens) int64."""
        examples = [self.rows.example(epoch, int(row)) for row in rows]
        batch = {
            key: pad_sequence([example[key] for example in examples], True, value)
            for key, value in PADDING.items()
        }
        labels = [example["next_sentence_label"] for example in examples]
        batch["next_sentence_label"] = torch.stack(labels)
        return {key: tensor.to(self.device) for key, tensor in batch.items()}
