"""A task of your own in place of one of GLUE's: a row of a table, by its --task_name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OwnTask:
    """What training needs to know of a task.

    `build_model()` is a torch.nn.Module; `load_split(args, split)` all examples of "train" or
    "dev", of any kind; `collate(examples)` a batch of them, a dict of tensors; `loss(model, batch)`
    the mean loss of a batch; `metric(model, batch)` name -> a number for each of its examples,
    whose mean is the metric; `make_optimizer(parameters, args)` a torch.optim optimizer.
    """

    build_model: Callable[[], Any]
    load_split: Callable[[Any, str], Sequence]
    collate: Callable[[Sequence], dict]
    loss: Callable[[Any, dict], Any]
    metric: Callable[[Any, dict], dict]
    make_optimizer: Callable[[Any, Any], Any]
    dev_splits: tuple[str, ...] = ("dev",)


PRETRAINING = "pretraining"  # the --task_name of task 8, which has no labels of its own
OWN_TASKS: dict[str, OwnTask] = {}  # a script adds its row
