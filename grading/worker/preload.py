"""What the fork server imports once: a worker forked from it starts at once, and shares it."""

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
    BertTokenizerFast,
    get_linear_schedule_with_warmup,
)

gc.collect()
gc.freeze()  # what is here stays: a collection in a worker would copy all its pages
