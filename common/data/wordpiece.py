"""A WordPiece vocabulary from counted words: the same text gives the same file.

The trainer of the `tokenizers` library breaks ties at random (its issue 1794).
"""

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping

from common.errors import UserError

import tokenizers

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # the first ids, in this order
PAD, UNK, CLS, SEP, MASK = range(len(SPECIAL))
CHARACTERS = 1_000  # the most common ones are tokens; others become [UNK]
WORDS = 200_000  # the most common ones decide about the tokens


def words_in(text: str) -> list[str]:
    """The words of a text as BERT's tokenizer sees them: lower case, punctuation on its own."""
    normal = tokenizers.normalizers.BertNormalizer().normalize_str(text)
    parts = tokenizers.pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normal)
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
    pairs = Pairs(vocabulary)
    for word, count in common:
        if known.issuperset(word):
            pairs.add(word, count)
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

    def joined(self, pair):
        """The id of two neighbors as one token, which may be new."""
        left, right = (self.tokens[index] for index in pair)
        token = left + right.removeprefix("##")
        if token not in self.ids:
            self.ids[token] = len(self.tokens)
            self.tokens.append(token)
        return self.ids[token]


class Pairs:
    """The pairs of neighboring tokens in all words, and how often each occurs."""

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary
        self.words = []  # each a list of token ids
        self.word_counts = []
        self.counts = Counter()
        self.places = defaultdict(set)  # pair -> the words that may have it
        self.queue = []  # (-count, the two tokens, pair); may be out of date

    def add(self, word, count):
        """Add a word, as its characters."""
        ids = self.vocabulary.ids
        self.words.append([ids[word[0]], *(ids["##" + character] for character in word[1:])])
        self.word_counts.append(count)
        self.count(len(self.words) - 1, count)

    def count(self, index, count):
        """Add `count` to the counts of a word's pairs."""
        word = self.words[index]
        for pair in itertools.pairwise(word):
            self.counts[pair] += count
            if count > 0:
                self.places[pair].add(index)

    def most_frequent(self):
        """The most frequent pair, or None if every word is one token."""
        if not self.queue:
            self.queue = [self.entry(pair) for pair, count in self.counts.items() if count]
            heapq.heapify(self.queue)
        while self.queue:
            entry = heapq.heappop(self.queue)
            now = self.entry(entry[-1])
            if now == entry:
                return entry[-1]
            if now[0]:
                heapq.heappush(self.queue, now)
        return None

    def entry(self, pair):
        """A pair's place in the queue."""
        return -self.counts[pair], *(self.vocabulary.tokens[index] for index in pair), pair

    def merge(self, pair):
        """Make a pair one token wherever it occurs."""
        joined, touched = self.vocabulary.joined(pair), set()
        for index in self.places.pop(pair):
            self.count(index, -self.word_counts[index])
            self.words[index] = merged(self.words[index], pair, joined)
            self.count(index, self.word_counts[index])
            word = self.words[index]
            touched.update(p for p in itertools.pairwise(word) if joined in p)
        for changed in touched:
            heapq.heappush(self.queue, self.entry(changed))


def merged(word, pair, joined):
    """A list of ids with each occurrence of a pair replaced, from the left."""
    result, at = [], 0
    while at < len(word):
        found = tuple(word[at : at + 2]) == pair
        result.append(joined if found else word[at])
        at += 1 + found
    return result


def word_encoder(tokens: list[str]) -> tokenizers.Tokenizer:
    """BERT's fast tokenizer without special tokens: the text "[MASK]" is three words to it."""
    vocabulary = {token: index for index, token in enumerate(tokens)}
    model = tokenizers.models.WordPiece(vocabulary, unk_token=SPECIAL[UNK])  # pyright: ignore
    encoder = tokenizers.Tokenizer(model)
    encoder.normalizer = tokenizers.normalizers.BertNormalizer()  # pyright: ignore
    encoder.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()  # pyright: ignore
    return encoder
