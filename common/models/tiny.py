"""A tiny BERT with fixed random weights and its own vocabulary: training without a network.

Nothing in it is trained, but it starts where comparing two sentences is soon learned. A few hidden
coordinates hold the segment alone, and the query projection of each layer is a copy of its key
projection with those coordinates reversed. So a word attends to the same word, and to the other
sentence: mostly the former in the first layer, and the latter, from [CLS] too, in the second.
"""

import math
from pathlib import Path

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,  # pyright: ignore[reportAttributeAccessIssue]
)

VOCABULARY = Path(__file__).with_name("tiny_vocab.txt")
SEED = 744
HIDDEN = 128
SEGMENT = 16  # of the hidden coordinates, these hold the segment, and no word
BOUNDS = {  # weights are uniform in +-bound; all others keep the variance of what they multiply
    "word_embeddings": 1.0,
    "position_embeddings": 0.02,
    "token_type_embeddings": 2.0,
    "classifier": 0.02,  # small, so that the first loss is close to log(num_labels)
}
LAYERS = ((1.5, 0.3), (0.4, 8.0))  # the gain of query and key, the pull of the other sentence


def tiny_tokenizer():
    """A WordPiece tokenizer for English text; it lower-cases, as bert-base-uncased does."""
    tokens = VOCABULARY.read_text(encoding="utf-8").split()
    vocab = {token: index for index, token in enumerate(tokens)}
    return BertTokenizerFast(vocab=vocab, do_lower_case=True, model_max_length=512)


@torch.no_grad()
def tiny_model(num_labels, layers=2, vocab_size=0):
    """A two-layer BERT whose weights are the same bits on every machine and under every seed.

    num_labels of 1 means a regression. With more `layers` those after the second are made like it.
    The global random state stays as it was. `vocab_size` is that of `tiny_tokenizer`, or another.
    """
    config = BertConfig(
        vocab_size=vocab_size or len(tiny_tokenizer()),
        hidden_size=HIDDEN,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=HIDDEN,
        num_labels=num_labels,  # pyright: ignore[reportCallIssue]
    )
    with torch.random.fork_rng(devices=[]):
        model = BertForSequenceClassification(config)
    generator = torch.Generator().manual_seed(SEED)
    for name, weight in sorted(model.named_parameters()):
        if weight.dim() == 2:
            bound = BOUNDS.get(name.split(".")[-2], math.sqrt(3 / weight.shape[1]))
            weight.copy_((torch.rand(weight.shape, generator=generator) * 2 - 1) * bound)
    embeddings = model.bert.embeddings
    embeddings.word_embeddings.weight[:, :SEGMENT] = 0
    segments = embeddings.token_type_embeddings.weight
    segments[:, SEGMENT:] = 0
    segments[1] = -segments[0]
    weights = dict(model.named_parameters())
    for number in range(layers):
        gain, pull = LAYERS[min(number, len(LAYERS) - 1)]
        attention = f"bert.encoder.layer.{number}.attention.self"
        query, key = weights[f"{attention}.query.weight"], weights[f"{attention}.key.weight"]
        key *= gain
        query.copy_(key)
        query[:, :SEGMENT] *= -pull
    return model
