"""DeepSpeed's engine: imported, configured, and what a run's record and checkpoints ask of it.

DeepSpeed is an optional extra, which `make deepspeed` installs; no other file imports it.
"""

import importlib
import json
import math
import os
import warnings
from collections import defaultdict
from typing import Any

from common.errors import UserError

NAME = "deepspeed"
MISSING = "DeepSpeed is not installed; `make deepspeed` installs it"
FP16 = ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")


def import_deepspeed(world) -> Any:
    """The package, ready for this worker; raises UserError where it is not installed.

    On a CPU it would compile an op first, which only inference calls: with a compiler, for a
    minute, and for ever if an earlier build was killed. Here it compiles nothing.
    """
    os.environ["LOCAL_RANK"] = str(world.device.index or 0)  # the number of this worker's device
    try:
        deepspeed = importlib.import_module(NAME)
    except ModuleNotFoundError as error:
        if error.name != NAME:
            raise
        raise UserError(MISSING) from None
    # DeepSpeed uses older names of torch.
    warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)
    deepspeed.ops.__compatible_ops__ = defaultdict(bool)  # of each op: whether it can be compiled
    return deepspeed


def engine_config(args) -> dict:
    """What `deepspeed.initialize` takes as `config`, of the flags and of task 8's settings.

    The optimizer and the scheduler are not in it: the loop's own are handed to DeepSpeed.
    """
    settings = json.loads(getattr(args, "settings", "{}"))
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": args.per_gpu_train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "managed_gradient_accumulation": False,  # an update is made where the loop calls step()
        "gradient_clipping": args.max_grad_norm if math.isfinite(args.max_grad_norm) else 0.0,
        "zero_optimization": {"stage": args.zero_stage},
        "zero_allow_untested_optimizer": True,  # LAMB, where it would be wrong, is refused
        "bf16": {"enabled": settings.get("bf16.enabled", False)},
    }
    if settings.get("fp16.enabled"):
        config["fp16"] = {"enabled": True, **{name: settings[f"fp16.{name}"] for name in FP16}}
    return config


class LossScale:
    """What a record reads of an engine's loss scaling: that of a LossScaler."""

    def __init__(self, engine):
        self.engine = engine

    @property
    def skipped(self) -> int:
        """How many updates were left out because a gradient was not finite."""
        return self.engine.skipped_steps

    def is_enabled(self) -> bool:
        """Whether losses are scaled."""
        return self.engine.fp16_enabled()

    def get_scale(self) -> float:
        """The factor, which the engine has adapted after the last step."""
        return self.engine.optimizer.loss_scale


def is_engine(model: Any) -> bool:
    """Whether a model is wrapped in DeepSpeed's engine."""
    return hasattr(model, "load_checkpoint")


def shards_weights(model: Any) -> bool:
    """Whether each worker has only its part of an engine's weights: in stage 3."""
    return is_engine(model) and model.zero_optimization_partition_weights()


def gathered_weights(engine: Any) -> dict:
    """The whole weights on rank 0; every rank calls it at once."""
    zero = importlib.import_module(NAME).zero
    with zero.GatheredParameters(list(engine.module.parameters())):
        weights = engine.module.state_dict() if engine.global_rank == 0 else {}
        copies = {tensor.data_ptr(): tensor.clone() for tensor in weights.values()}  # tied: once
        return {name: copies[tensor.data_ptr()] for name, tensor in weights.items()}
