"""Text as token ids, by word: each different word is tokenized once."""

import re
from collections import Counter
from itertools import chain

from common.data.wordpiece import word_encoder, words_in

import numpy as np

BLANK_LINES = re.compile(r"\n[ \t\r\f\v]*\n")
SENTENCE_END = re.compile(r"[.!?][\"')\]\u2019\u201d\u00bb]*$")
KEPT_WORDS = 1_000_000  # different words held in memory, at about 200 bytes each


def documents_in(text: str) -> list[list[str]]:
    """The words of each document of a text, as separated by white space, punctuation included."""
    return [words for part in BLANK_LINES.split(text) if (words := part.split())]


class WordCounts:
    """How often each word occurs in texts; of too many different words the rarest are dropped."""

    def __init__(self):
        self.counts = Counter()

    def add(self, words: Counter) -> None:
        """Add the counts of a text's words."""
        self.counts.update(words)
        rare = 1
        while len(self.counts) > KEPT_WORDS:
            self.counts = Counter({w: n for w, n in self.counts.items() if n > rare})
            rare *= 2

    def split(self) -> Counter:
        """The counts of words as BERT's tokenizer sees them."""
        counts = Counter()
        for text, count in self.counts.items():
            for word in words_in(text):
                counts[word] += count
        return counts


class Encoder:
    """Encodes documents; remembers the ids of the words that it has seen."""

    def __init__(self, tokens: list[str], dtype: np.dtype):
        self.tokenizer = word_encoder(tokens)
        self.dtype = dtype
        self.forget()

    def forget(self):
        """Start with no words."""
        self.numbers = {}  # word -> its number
        self.parts = {}  # word as BERT's tokenizer sees it -> its ids
        self.ids = np.zeros(0, self.dtype)  # of all words, one after the other
        self.lengths = np.zeros(0, np.int64)  # by number of the word
        self.is_end = np.zeros(0, bool)  # whether a sentence ends with the word

    def learn(self, words):
        """Tokenize words that are new."""
        new = [word for word in dict.fromkeys(words) if word not in self.numbers]
        if not new:
            return
        first = len(self.numbers)
        self.numbers.update(zip(new, range(first, first + len(new)), strict=True))
        parts = [words_in(word) for word in new]
        self.learn_parts(dict.fromkeys(chain.from_iterable(parts)))
        encoded = [[one for part in each for one in self.parts[part]] for each in parts]
        ids = np.fromiter(chain.from_iterable(encoded), self.dtype)
        self.ids = np.concatenate([self.ids, ids])
        self.lengths = np.concatenate([self.lengths, [len(each) for each in encoded]])
        ends = [bool(SENTENCE_END.search(word)) for word in new]
        self.is_end = np.concatenate([self.is_end, ends])
        self.starts = np.cumsum(self.lengths) - self.lengths

    def learn_parts(self, parts):
        """Tokenize parts of words that are new: this is the slow step."""
        new = [part for part in parts if part not in self.parts]
        encoded = self.tokenizer.encode_batch_fast(new, add_special_tokens=False)
        self.parts.update((part, each.ids) for part, each in zip(new, encoded, strict=True))

    def encode(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(token ids, tokens of each sentence, sentences of each document) of a text.

        A sentence ends with a word that ends in a full stop, a question or an exclamation mark. A
        document of one sentence is cut in its middle, as it takes two to make a pair; one of fewer
        than two tokens is left out.
        """
        if len(self.numbers) > KEPT_WORDS:
            self.forget()
        documents = documents_in(text)
        words = [word for document in documents for word in document]
        self.learn(words)
        codes = np.fromiter(map(self.numbers.__getitem__, words), np.int64, len(words))
        borders = np.cumsum([len(document) for document in documents], dtype=np.int64)
        is_end = self.is_end[codes]
        is_end[borders - 1] = True
        ends = np.flatnonzero(is_end)
        owner = np.searchsorted(borders, ends, side="right")  # the document of each sentence
        lengths = np.diff(np.cumsum(self.lengths[codes])[ends], prepend=0)
        sizes = np.bincount(owner, lengths, len(documents)).astype(np.int64)
        ids = self.ids_of(codes)[np.repeat(sizes >= 2, sizes)]
        return ids, *halve(lengths, owner, sizes)

    def ids_of(self, codes):
        """The token ids of words by number."""
        lengths = self.lengths[codes]
        shift = self.starts[codes] - (np.cumsum(lengths) - lengths)
        return self.ids[np.repeat(shift, lengths) + np.arange(lengths.sum())]


def halve(lengths, owner, sizes):
    """(tokens of each sentence, sentences of each document) as `encode` returns them.

    `lengths` has the tokens of each sentence, `owner` its document, `sizes` each document's tokens.
    """
    used = (lengths > 0) & (sizes >= 2)[owner]
    lengths, owner = lengths[used], owner[used]
    counts = np.bincount(owner, minlength=len(sizes))
    alone = counts[owner] == 1
    halves = np.repeat(lengths, 1 + alone)
    second = np.cumsum(1 + alone)[alone] - 1
    halves[second - 1] = lengths[alone] // 2
    halves[second] -= lengths[alone] // 2
    return halves, (counts + (counts == 1))[sizes >= 2]
