"""Imported once, by a process that workers are forked from: they start at once and share memory."""

import contextlib
import gc

import common  # noqa: F401 settings that must be made before torch is loaded

import scipy.stats  # noqa: F401
import sklearn.metrics  # noqa: F401
import torch.distributed
import torch.utils.data.distributed  # noqa: F401
import tqdm.auto  # noqa: F401
from transformers import (  # noqa: F401
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
    BertTokenizer,
    BertTokenizerFast,  # pyright: ignore[reportAttributeAccessIssue]
    get_linear_schedule_with_warmup,
)

with contextlib.suppress(ImportError, AttributeError):  # of some versions only; saves 0.15 s each
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    get_checkpoint_conversion_mapping("bert")  # compiles 900 regular expressions, once

gc.collect()
gc.freeze()  # a collection in a worker would copy all these pages
