"""DeepSpeed's JSON configuration: the part of it that task 8 reads, checked and filled in."""

import json
import math
from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import UserError
from common.flags import FLAGS
from common.pretraining_flags import FLAGS as OWN_FLAGS

AUTO = "auto"
OPTIMIZERS = ("Adam", "AdamW", "Lamb")
SCHEDULERS = ("WarmupLR", "WarmupDecayLR", "polynomial", "warmup_linear_decay_exp")
MICRO, ACCUMULATED = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
TOTAL = "train_batch_size"


class Key(NamedTuple):
    """A key: the values allowed, its value where it is missing, the flag that "auto" stands for."""

    type: Any  # int, float, bool, list (of two numbers), or a tuple of the words allowed
    default: Any = None
    flag: str = ""


KEYS = {
    TOTAL: Key(int),
    MICRO: Key(int, None, "per_gpu_train_batch_size"),
    ACCUMULATED: Key(int, None, "gradient_accumulation_steps"),
    "steps_per_print": Key(int, 0),
    "gradient_clipping": Key(float, AUTO, "max_grad_norm"),
    "optimizer.type": Key(OPTIMIZERS, "AdamW"),
    "optimizer.params.lr": Key(float, AUTO, "learning_rate"),
    "optimizer.params.betas": Key(list, [0.9, 0.999]),
    "optimizer.params.eps": Key(float, AUTO, "adam_epsilon"),
    "optimizer.params.weight_decay": Key(float, AUTO, "weight_decay"),
    "optimizer.params.bias_correction": Key(bool, True),
    "optimizer.params.max_grad_norm": Key(float),
    "optimizer.params.max_coeff": Key(float, 10.0),
    "optimizer.params.min_coeff": Key(float, 0.01),
    "optimizer.params.torch_adam": Key(bool),
    "scheduler.type": Key(SCHEDULERS, "WarmupDecayLR"),
    "scheduler.params.warmup_min_lr": Key(float, 0.0),
    "scheduler.params.warmup_max_lr": Key(float, None, "learning_rate"),
    "scheduler.params.warmup_num_steps": Key(int, None, "warmup_steps"),
    "scheduler.params.warmup_proportion": Key(float),
    "scheduler.params.warmup_type": Key(("linear", "log"), "linear"),
    "scheduler.params.total_num_steps": Key(int),
    "scheduler.params.power": Key(float, 0.5),
    "scheduler.params.decay_rate": Key(float, 0.9),
    "scheduler.params.decay_step": Key(float, 1000.0),
    "fp16.enabled": Key(bool, AUTO, "fp16"),
    "fp16.loss_scale": Key(float, 0.0),
    "fp16.initial_scale_power": Key(int, 16),
    "fp16.loss_scale_window": Key(int, 1000),
    "fp16.hysteresis": Key(int, 2),
    "fp16.min_loss_scale": Key(float, 1.0),
    "bf16.enabled": Key(bool, AUTO, "bf16"),
    "zero_optimization.stage": Key(int, 0),
    "zero_allow_untested_optimizer": Key(bool),
}
DEFAULTS = {flag.name: flag.default for flag in (*FLAGS, *OWN_FLAGS)}


def read_config(path: Path, args: Namespace) -> dict[str, Any]:
    """The settings in a file, by dotted key, with the flags' values for "auto"; checked.

    The three batch sizes are filled in from each other. Raises UserError with every problem.
    """
    given = flatten(parse(path))
    problems = [problem for key, value in given.items() if (problem := wrong(key, value))]
    if problems:
        raise UserError(f"{path}:" + "".join(f"\n- {problem}" for problem in problems))
    problems += [problem for key in given if (problem := contradiction(key, given[key], args))]
    settings = {key: filled(key, given.get(key, KEYS[key].default), args) for key in KEYS}
    settings |= batch_sizes(given, args, problems)
    if "gradient_clipping" not in given and settings["optimizer.params.max_grad_norm"]:
        settings["gradient_clipping"] = settings["optimizer.params.max_grad_norm"]
    problems += contradictions(settings)
    if problems:
        raise UserError(f"{path}:" + "".join(f"\n- {problem}" for problem in problems))
    return settings


def parse(path):
    """The file's content; raises UserError where it is not one JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=without_repeats)
    except OSError as error:
        raise UserError(f"--deepspeed_config {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"--deepspeed_config {path}: is not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise UserError(f"--deepspeed_config {path}: must hold a JSON object, {{...}}")
    return content


def without_repeats(pairs):
    """An object of the file; raises ValueError for a key that stands there twice."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f'the key "{name}" stands there twice')
    return dict(pairs)


def flatten(content, prefix=""):
    """Dotted key -> value of everything in an object."""
    flat = {}
    for name, value in content.items():
        key = f"{prefix}{name}"
        inner = isinstance(value, dict) and any(known.startswith(f"{key}.") for known in KEYS)
        flat |= flatten(value, f"{key}.") if inner else {key: value}
    return flat


def wrong(key: str, value: Any) -> str:
    """What is wrong with a key or with its value; "" if nothing is."""
    if key not in KEYS:
        return f'unknown key "{key}"; these are read: {", ".join(KEYS)}'
    kind = KEYS[key].type
    auto = value == AUTO
    if auto and not isinstance(kind, tuple):
        return ""
    if isinstance(kind, tuple):
        words = {word.lower(): word for word in kind}
        bad, wanted = str(value).lower() not in words, "one of " + ", ".join(kind)
    elif kind is list:
        bad = not (isinstance(value, list) and len(value) == 2 and all(map(is_number, value)))
        wanted = "two numbers"
    elif kind is bool:
        bad, wanted = not isinstance(value, bool), "true or false"
    else:
        bad = not is_number(value) or value < 0 or (kind is int and value != int(value))
        wanted = ("a whole number" if kind is int else "a number") + ', 0 or more, or "auto"'
    return f"{key} is {json.dumps(value)}; it must be {wanted}" if bad else ""


def is_number(value):
    """Whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def contradiction(key, value, args):
    """Where a value is not what its flag was set to; "" if it is, or if the flag was not given."""
    flag = KEYS[key].flag
    if not flag or value == AUTO or not is_given(flag, args):
        return ""
    ours = getattr(args, flag)
    if ours == value:
        return ""
    return f'{key} is {json.dumps(value)}, but --{flag} is {ours}: make them equal, or write "auto"'


def is_given(flag, args):
    """Whether a flag was given: its value is not the default."""
    return getattr(args, flag) != DEFAULTS[flag]


def filled(key, value, args):
    """A value, with its flag's in place of "auto"; words as the table writes them."""
    kind, default, flag = KEYS[key]
    if isinstance(kind, tuple):
        return next(word for word in kind if word.lower() == value.lower())
    if value != AUTO:
        return value
    return getattr(args, flag) if flag else None if default == AUTO else default


def batch_sizes(given, args, problems):
    """The three batch sizes; those that are missing follow from the others, or from the flags.

    Adds to `problems` unless train_batch_size is the product of the other two and the workers.
    """
    workers, sizes = args.world_size, {}
    known = {key: given[key] for key in (TOTAL, MICRO, ACCUMULATED) if given.get(key, AUTO) != AUTO}
    for key, other in ((MICRO, ACCUMULATED), (ACCUMULATED, MICRO)):
        if key in known:
            sizes[key] = known[key]
        elif {TOTAL, other} <= set(known):
            sizes[key] = known[TOTAL] // max(1, known[other] * workers)
        elif (
            TOTAL in known
            and key == MICRO
            and getattr(args, KEYS[key].flag) == DEFAULTS[KEYS[key].flag]
        ):
            sizes[key] = known[TOTAL] // (getattr(args, ACCUMULATED) * workers)
        else:
            sizes[key] = getattr(args, KEYS[key].flag)
    product = sizes[MICRO] * sizes[ACCUMULATED] * workers
    sizes[TOTAL] = known.get(TOTAL, product)
    if sizes[TOTAL] != product or not product:
        problems.append(
            f"{TOTAL} is {sizes[TOTAL]}, but {sizes[MICRO]} ({MICRO}) x {sizes[ACCUMULATED]} "
            f"({ACCUMULATED}) x {workers} (workers) = {product}; change one of them, or write "
            f'"{AUTO}" for {TOTAL}'
        )
    return sizes


def contradictions(settings):
    """Every problem with settings that are valid one by one."""
    problems = []
    if settings["fp16.enabled"] and settings["bf16.enabled"]:
        problems.append("fp16 and bf16 are both enabled; choose one")
    if settings["optimizer.params.min_coeff"] > settings["optimizer.params.max_coeff"]:
        problems.append("optimizer.params.min_coeff is above max_coeff")
    if settings["zero_optimization.stage"] > 3:
        stage = settings["zero_optimization.stage"]
        problems.append(f"zero_optimization.stage is {stage}; it must be 0, 1, 2 or 3")
    elif settings["zero_optimization.stage"] and settings["optimizer.type"] == "Lamb":
        problems.append(
            f"zero_optimization.stage is {settings['zero_optimization.stage']} with Lamb: each "
            "worker's part of all weights would get one trust ratio, in place of one for each "
            "weight; choose stage 0, or AdamW"
        )
    peak, rate = settings["scheduler.params.warmup_max_lr"], settings["optimizer.params.lr"]
    if peak not in (None, rate):
        problems.append(f"scheduler.params.warmup_max_lr is {peak}, but optimizer.params.lr {rate}")
    clip, own = settings["gradient_clipping"], settings["optimizer.params.max_grad_norm"]
    if own not in (None, clip):
        problems.append(f"optimizer.params.max_grad_norm is {own}, but gradients clip at {clip}")
    return problems
