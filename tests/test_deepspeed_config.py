"""DeepSpeed's JSON configuration: what is read of it, and what is refused with a reason."""

import json
from argparse import Namespace
from pathlib import Path

from common.deepspeed_config import DEFAULTS, read_config
from common.errors import UserError

import pytest

TUTORIAL = {  # as DeepSpeed's tutorial on BERT has it
    "train_batch_size": 4096,
    "train_micro_batch_size_per_gpu": 64,
    "steps_per_print": 1000,
    "optimizer": {
        "type": "Adam",
        "params": {
            "lr": 2e-4,
            "max_grad_norm": 1.0,
            "weight_decay": 0.01,
            "bias_correction": False,
        },
    },
    "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16},
}
LAMB = {"optimizer": {"type": "Lamb", "params": {"lr": 4e-3, "max_coeff": 0.5, "min_coeff": 0.08}}}
TASK8 = Path(__file__).parents[1] / "task8"


@pytest.fixture
def read(tmp_path):
    """Read a configuration, an object or a text, in a run with some flags."""

    def read(content, **flags):
        path = tmp_path / "config.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return read_config(path, Namespace(**(DEFAULTS | flags)))

    return read


def test_the_tutorials_configuration_is_read(read):
    settings = read(TUTORIAL, world_size=16)
    assert settings["gradient_accumulation_steps"] == 4  # 4096 / (64 x 16)
    assert settings["optimizer.type"] == "Adam"
    assert settings["optimizer.params.bias_correction"] is False
    assert settings["gradient_clipping"] == 1.0
    assert settings["fp16.enabled"] is True
    assert settings["bf16.enabled"] is False


@pytest.mark.parametrize("path", sorted(TASK8.glob("*.json")), ids=lambda path: path.name)
def test_the_kits_own_configurations_are_read(path):
    settings = read_config(path, Namespace(**(DEFAULTS | {"world_size": 4})))
    assert settings["train_batch_size"] > 0


def test_auto_takes_the_flags_values(read):
    content = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "eps": "auto", "betas": "auto"}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
        "fp16": {"enabled": "auto"},
        "bf16": {"enabled": "auto"},
    }
    flags = {"per_gpu_train_batch_size": 3, "gradient_accumulation_steps": 5, "world_size": 2}
    flags |= {"learning_rate": 0.5, "adam_epsilon": 0.25, "max_grad_norm": 7.0, "bf16": True}
    settings = read(content, warmup_steps=11, **flags)
    assert settings["train_batch_size"] == 30
    assert settings["gradient_clipping"] == 7.0
    assert settings["optimizer.params.lr"] == 0.5
    assert settings["optimizer.params.eps"] == 0.25
    assert settings["optimizer.params.betas"] == [0.9, 0.999]
    assert settings["scheduler.params.warmup_num_steps"] == 11
    assert (settings["fp16.enabled"], settings["bf16.enabled"]) == (False, True)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"train_batch_size": 64}, (64, 16, 1)),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 8}, (64, 2, 8)),
        ({"train_micro_batch_size_per_gpu": 2}, (8, 2, 1)),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}, (24, 2, 3)),
        ({}, (128, 32, 1)),
    ],
)
def test_missing_batch_sizes_follow_from_the_others(read, given, expected):
    settings = read(given, world_size=4)
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert tuple(settings[name] for name in names) == expected


@pytest.mark.parametrize(
    ("content", "flags", "parts"),
    [
        ({**TUTORIAL, "gradient_accumulation_steps": 3}, {}, ["4096", "64", "3", "4", "= 768"]),
        ({"train_batch_size": 62}, {}, ["62", "= 60"]),
        ({"train_batch_size": 2}, {}, ["2", "= 0"]),
        ({"optimizers": {}}, {}, ['unknown key "optimizers"', "optimizer.params.lr"]),
        ({"optimizer": {"params": {"rate": 1}}}, {}, ['unknown key "optimizer.params.rate"']),
        ({"optimizer": {"type": "SGD"}}, {}, ['"SGD"', "Adam, AdamW, Lamb"]),
        ({"optimizer": []}, {}, ['unknown key "optimizer"']),
        ({"fp16": {"enabled": 1}}, {}, ["fp16.enabled is 1", "true or false"]),
        ({"train_batch_size": 1.5}, {}, ["train_batch_size is 1.5", "whole number"]),
        ({"train_batch_size": -4}, {}, ["-4"]),
        ({"optimizer": {"params": {"lr": "fast"}}}, {}, ['"fast"', "auto"]),
        ({"optimizer": {"params": {"betas": [0.9]}}}, {}, ["[0.9]", "two numbers"]),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, {}, ["choose one"]),
        ({"zero_optimization": {"stage": 4}}, {}, ["stage is 4"]),
        ({**LAMB, "zero_optimization": {"stage": 1}}, {}, ["stage is 1 with Lamb", "stage 0, or"]),
        (LAMB, {"learning_rate": 0.7}, ["lr is 0.004", "--learning_rate is 0.7", '"auto"']),
        ({"scheduler": {"params": {"warmup_max_lr": 0.5}}}, {}, ["warmup_max_lr is 0.5"]),
        ('{"bf16": {}, "bf16": {}}', {}, ['"bf16" stands there twice']),
        ("[1]", {}, ["JSON object"]),
        ("{", {}, ["not valid JSON"]),
    ],
)
def test_what_is_wrong_is_refused_with_the_values(read, content, flags, parts):
    with pytest.raises(UserError) as error:
        read(content, **({"world_size": 4} | flags))
    for part in parts:
        assert part in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        read_config(tmp_path / "none.json", Namespace(**DEFAULTS))
