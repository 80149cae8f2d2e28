"""The inputs of task 8's runs: a small corpus, a model for it, and the settings."""

import itertools
import json
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path

from grading.inputs import Setting

WORKERS = 2
LENGTH = 48  # tokens
PHASE_2_LENGTH = 64
DOCUMENTS = 60
VOCABULARY = 400  # tokens
CUT = 4  # updates after which the run that is resumed was saved: in the middle of an epoch
RATE, WARMUP = 2e-3, 5  # of the setting adamw
DECAY = 1.0  # its weight decay: so large that biases which decay, too, are found
# Update (from 0) -> what the learning rate is multiplied by in it.
FACTORS = {0: 0.0, 1: 0.2, 3: 0.6, 5: 1.0, 6: 0.933033, 10: 0.707107, 15: 0.5, 25: 0.25}
RISING = (0.0, 0.25, 0.5, 0.75, 1.0)  # the same in float16, of updates that were made
AGAIN = (0.0, 0.5, 1.0)  # and of phase 2, which begins again
LAMB_RATE = 2e-2


@dataclass(frozen=True)
class PretrainingSetting(Setting):
    """One way of running task 8: `updates` of `accumulated` micro-batches of `batch` rows."""

    updates: int = 4
    batch: int = 3
    accumulated: int = 3
    dropout: float = 0.0
    config: dict = field(default_factory=dict)
    flags: str = "--save_strategy no"


ADAMW = {
    "optimizer": {"type": "AdamW", "params": {"lr": RATE, "weight_decay": DECAY}},
    "scheduler": {
        "type": "warmup_linear_decay_exp",
        "params": {"warmup_num_steps": WARMUP, "decay_rate": 0.5, "decay_step": 10},
    },
}
FLOAT16 = {
    "optimizer": {"type": "Lamb", "params": {"lr": RATE}},  # a fused AdamW skips inside its kernel
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}},
    "fp16": {"enabled": True, "initial_scale_power": 26, "hysteresis": 1},
}
LAMB = {
    "optimizer": {"type": "Lamb", "params": {"lr": LAMB_RATE, "max_coeff": 0.5}},
    "scheduler": {"type": "polynomial", "params": {"warmup_num_steps": 2}},
}
KEPT = "--save_steps 1 --save_total_limit 99"
SETTINGS = {
    one.name: one
    for one in (
        PretrainingSetting("functions", "corpus", 0, 0.0, updates=0),  # called by themselves
        PretrainingSetting("plain", "corpus", 1, 1e6, learning_rate=0.02),
        PretrainingSetting(
            "float16", "corpus", 1, 0.1, learning_rate=0.2, updates=16, config=FLOAT16
        ),
        PretrainingSetting("adamw", "corpus", 5, 1.0, updates=30, config=ADAMW),
        PretrainingSetting(
            "resumed",
            "corpus",
            1,
            1.0,
            updates=7,
            accumulated=1,
            dropout=0.1,
            config=LAMB,
            flags=KEPT,
        ),
    )
}


def build(folder: Path) -> str:
    """Write the corpus, the model and the configurations into `folder`.

    Returns the token ids of all documents, with a space on either side of each, and a new line
    between documents.
    """
    from common.data.corpus import Corpus
    from common.data.preparing import prepare
    from common.data.pretraining import load_tokenizer
    from sample_data.make_corpus import corpus

    import torch
    import transformers

    (folder / "corpus").mkdir(parents=True)
    text = folder / "text.txt"
    text.write_text(corpus(DOCUMENTS))
    sizes = {"vocab_size": VOCABULARY, "shards": 2, "overwrite_output_dir": False}
    prepare(Namespace(output_dir=str(folder / "corpus"), **sizes), [str(text)])
    made = Corpus(folder / "corpus")
    config = transformers.BertConfig(
        vocab_size=made.vocab_size,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=PHASE_2_LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(8)
    transformers.logging.disable_progress_bar()
    transformers.BertForPreTraining(config).save_pretrained(folder / "model")
    load_tokenizer(made).save_pretrained(folder / "model")
    for setting in SETTINGS.values():
        (folder / f"{setting.name}.json").write_text(json.dumps(setting.config))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return "\n".join(text_of(shard) for shard in made.shards)


def text_of(shard) -> str:
    """A shard's documents as numbers."""
    borders = shard.sentences[shard.documents].tolist()
    spans = itertools.pairwise(borders)
    return "\n".join(f" {' '.join(map(str, shard.tokens[a:b].tolist()))} " for a, b in spans)
