"""Imported once, by a process that workers are forked from: they start at once and share memory."""

import contextlib
import gc
import weakref

import common  # noqa: F401 settings that must be made before torch is loaded

import scipy.stats  # noqa: F401
import sklearn.metrics
import torch
import torch.distributed
import torch.utils.data.distributed
import tqdm.auto  # noqa: F401
from transformers import (  # noqa: F401
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
    BertTokenizerFast,  # pyright: ignore[reportAttributeAccessIssue]
    get_linear_schedule_with_warmup,
)

with contextlib.suppress(ImportError, AttributeError):  # of some versions only; saves 0.15 s each
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    get_checkpoint_conversion_mapping("bert")  # compiles 900 regular expressions, once


def warm_up() -> None:
    """Make one update of a tiny model, as a script does: what torch loads at first use is loaded.

    It saves each worker 0.06 s, starts no thread, and leaves torch's random numbers as they are.
    """
    torch.set_num_threads(1)
    config = BertConfig(
        vocab_size=8, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4
    )
    model = BertForSequenceClassification(config)
    adamw = torch.optim.AdamW(model.parameters())
    get_linear_schedule_with_warmup(adamw, 0, 1)
    ones = torch.ones(2, 2, dtype=torch.long)
    model(input_ids=ones, attention_mask=ones, token_type_ids=ones, labels=ones[0]).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    adamw.step()
    sklearn.metrics.accuracy_score([0, 1], [0, 1])


with torch.random.fork_rng(devices=[]):
    warm_up()
for finalizer in list(weakref.finalize._registry):  # pyright: ignore[reportAttributeAccessIssue]
    finalizer.atexit = False  # what these libraries undo at the end took a worker 0.04 s

gc.collect()
gc.freeze()  # a collection in a worker would copy all these pages
