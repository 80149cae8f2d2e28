"""A WordPiece vocabulary from counted words: the same text gives the same file.

The trainer of the `tokenizers` library breaks ties at random (its issue 1794).
"""

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Mapping

from common.errors import UserError

import numpy as np
import tokenizers

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # the first ids, in this order
PAD, UNK, CLS, SEP, MASK = range(len(SPECIAL))
NORMALIZER = tokenizers.normalizers.BertNormalizer()  # pyright: ignore
PRE_TOKENIZER = tokenizers.pre_tokenizers.BertPreTokenizer()  # pyright: ignore
PLAIN = re.compile(r"[ -~]*")
PLAIN_WORD = re.compile(r"[a-z0-9]+|[^a-z0-9 ]")
CHARACTERS = 1_000  # the most common ones are tokens; others become [UNK]
BORDER, GONE = -1, -2  # in place of a token's id
WORDS = 50_000  # the most common ones decide about the tokens


def words_in(text: str) -> list[str]:
    """The words of a text as BERT's tokenizer sees them: lower case, punctuation on its own."""
    if PLAIN.fullmatch(text):
        return PLAIN_WORD.findall(text.lower())  # the same, 20 times as fast
    parts = PRE_TOKENIZER.pre_tokenize_str(NORMALIZER.normalize_str(text))
    return [word for word, _ in parts]


def train_wordpiece(counts: Mapping[str, int], size: int) -> list[str]:
    """At most `size` tokens: special ones, characters, and the most frequent pieces of words.

    `counts` is word -> how often it occurs. Starting from characters, the most frequent pair of
    neighbors becomes a token, again and again (Sennrich et al. 2016); of equally frequent pairs the
    first in the alphabet. Fewer tokens are returned once every word is one. Raises UserError if
    `size` is too small for the characters alone.
    """
    common = heapq.nsmallest(WORDS, counts.items(), key=lambda item: (-item[1], item[0]))
    alphabet = alphabet_of(dict(common))
    vocabulary = Vocabulary(alphabet)
    if size < len(vocabulary.tokens):
        raise UserError(
            f"--vocab_size {size}: is too small; the {len(SPECIAL)} special tokens and the "
            f"characters of this text are {len(vocabulary.tokens)}"
        )
    known = set(alphabet)
    pairs = Pairs(vocabulary, [item for item in common if known.issuperset(item[0])])
    while len(vocabulary.tokens) < size and (pair := pairs.most_frequent()):
        pairs.merge(pair)
    return vocabulary.tokens


def alphabet_of(counts):
    """The most common characters of some words, in order of the alphabet."""
    characters = Counter()
    for word, count in counts.items():
        for character in word:
            characters[character] += count
    ranked = sorted(characters.items(), key=lambda item: (-item[1], item[0]))
    return sorted(character for character, _ in ranked[:CHARACTERS])


class Vocabulary:
    """Tokens and their ids."""

    def __init__(self, alphabet):
        """Special tokens, then the characters: at the start of a word, and within one."""
        self.tokens = [*SPECIAL, *alphabet, *("##" + character for character in alphabet)]
        self.ids = {token: index for index, token in enumerate(self.tokens)}

    def joined(self, left, right):
        """The id of two neighbors as one token, which may be new."""
        token = self.tokens[left] + self.tokens[right].removeprefix("##")
        if token not in self.ids:
            self.ids[token] = len(self.tokens)
            self.tokens.append(token)
        return self.ids[token]


class Pairs:
    """The pairs of neighboring tokens in all words, how often each occurs, and where.

    All words stand in one array of token ids, with BORDER between them; `before` and `after` link
    what is left of it. A pair is the number `left << 32 | right`.
    """

    def __init__(self, vocabulary, words):
        """`words` are (word, how often it occurs)."""
        self.vocabulary = vocabulary
        ids, flat = vocabulary.ids, [BORDER]
        for word, _ in words:
            flat += [ids[word[0]], *(ids["##" + character] for character in word[1:]), BORDER]
        self.tokens = np.array(flat, np.int64)
        lengths = [len(word) + 1 for word, _ in words]
        self.weights = np.repeat([0, *(count for _, count in words)], [1, *lengths])
        self.before = np.arange(-1, len(flat) - 1)
        self.after = np.minimum(np.arange(1, len(flat) + 1), len(flat) - 1)
        self.counts = Counter()
        self.places = defaultdict(list)  # pair -> arrays of places where it may be
        self.queue = []  # (-count, the two tokens, pair); may be out of date
        self.count(np.arange(len(flat)), 1)

    def count(self, places, sign):
        """Add the pairs that begin at some places to the counts, or with -1 subtract them."""
        left, right = self.tokens[places], self.tokens[self.after[places]]
        inside = (left != BORDER) & (right != BORDER)
        places, pairs = places[inside], (left << 32 | right)[inside]
        order = np.argsort(pairs, kind="stable")
        places, pairs = places[order], pairs[order]
        firsts = np.flatnonzero(np.diff(pairs, prepend=-1))
        if not len(firsts):
            return
        sums = np.add.reduceat(self.weights[places], firsts).tolist()
        ends = [*firsts[1:].tolist(), len(places)]
        parts = zip(pairs[firsts].tolist(), sums, firsts.tolist(), ends, strict=True)
        for pair, change, first, end in parts:
            self.counts[pair] += sign * change
            if sign > 0:
                self.places[pair].append(places[first:end])
                heapq.heappush(self.queue, self.entry(pair))

    def most_frequent(self):
        """The most frequent pair, or None if every word is one token."""
        while self.queue:
            entry = heapq.heappop(self.queue)
            now = self.entry(entry[-1])
            if now == entry and now[0]:
                return entry[-1]
            if now[0]:
                heapq.heappush(self.queue, now)
        return None

    def entry(self, pair):
        """A pair's place in the queue."""
        tokens = self.vocabulary.tokens
        return -self.counts[pair], tokens[pair >> 32], tokens[pair & 0xFFFFFFFF], pair

    def merge(self, pair):
        """Make a pair one token wherever it occurs, from the left."""
        left, right = pair >> 32, pair & 0xFFFFFFFF
        first = np.unique(np.concatenate(self.places.pop(pair)))
        here = (self.tokens[first] == left) & (self.tokens[self.after[first]] == right)
        first = first[here]
        if left == right:
            first = self.without_overlaps(first)
        second = self.after[first]
        self.count(np.unique(np.concatenate([self.before[first], first, second])), -1)
        self.tokens[first] = self.vocabulary.joined(left, right)
        self.tokens[second] = GONE
        self.after[first] = self.after[second]
        self.before[self.after[second]] = first
        self.count(np.unique(np.concatenate([self.before[first], first])), 1)

    def without_overlaps(self, places):
        """The places of a pair of equal tokens, without those that begin within one before."""
        kept, taken = [], -1
        for place, following in zip(places.tolist(), self.after[places].tolist(), strict=True):
            if place != taken:
                kept.append(place)
                taken = following
        return np.array(kept, np.int64)


def word_encoder(tokens: list[str]) -> tokenizers.Tokenizer:
    """BERT's fast tokenizer without special tokens: the text "[MASK]" is three words to it."""
    vocabulary = {token: index for index, token in enumerate(tokens)}
    model = tokenizers.models.WordPiece(vocabulary, unk_token=SPECIAL[UNK])  # pyright: ignore
    encoder = tokenizers.Tokenizer(model)
    encoder.normalizer = NORMALIZER  # pyright: ignore
    encoder.pre_tokenizer = PRE_TOKENIZER  # pyright: ignore
    return encoder
