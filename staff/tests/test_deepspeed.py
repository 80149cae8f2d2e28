"""DeepSpeed's engine: the losses of our loops, what it refuses, and that it compiles nothing.

DeepSpeed is an optional extra, which `make deepspeed` installs.
"""

import json
import sys
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

from common.deepspeed_config import DEFAULTS
from common.engine import MISSING, engine_config, import_deepspeed
from common.errors import UserError
from common.models.lamb import Lamb
from common.pretraining import apply_config
from experiments import engine as experiment
from staff.tests.test_pretrain import lines_of, losses, run, text, without_seconds  # noqa: F401

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = "task8/pretrain_deepspeed.py"
MORE = "--per_gpu_train_batch_size 4 --gradient_accumulation_steps 2 --max_steps 6"
CLIPS = {"gradient_clipping": 0.5, "optimizer": {"params": {"lr": 5e-3}}}  # in every step
needed = pytest.mark.skipif(not find_spec("deepspeed"), reason=MISSING)
pytestmark = pytest.mark.timeout(180)


def stage(number, **more):
    """A configuration with that ZeRO stage."""
    return {**CLIPS, "zero_optimization": {"stage": number}, **more}


def test_without_deepspeed_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(UserError, match="`make deepspeed`"):
        import_deepspeed(SimpleNamespace(device=torch.device("cpu")))


@pytest.mark.skipif(bool(find_spec("deepspeed")), reason="DeepSpeed is installed")
def test_without_deepspeed_a_run_ends_with_one_line(run):  # noqa: F811
    crew = run(MORE, workers=2, code=2, script=SCRIPT)
    for worker in crew.workers:
        assert worker.errors == [f"pretrain_deepspeed.py: {MISSING}"]


@pytest.mark.parametrize("task", ["task8", "deepspeed"])
def test_the_engine_alone_takes_a_stage(tmp_path, task):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 2}, "fp16": {"enabled": True}}))
    flags = {"task": task, "deepspeed_config": str(path), "max_seq_length": 0, "phase": "1"}
    args = Namespace(**{**DEFAULTS, **flags, "world_size": 3, "gradient_accumulation_steps": 4})
    if task == "task8":
        with pytest.raises(UserError, match="pretrain_deepspeed"):
            apply_config(args)
        return
    apply_config(args)
    config = engine_config(args)
    assert config["zero_optimization"] == {"stage": 2}
    assert config["train_micro_batch_size_per_gpu"] == 32
    assert config["gradient_accumulation_steps"] == 4
    assert config["gradient_clipping"] == 1.0
    assert config["fp16"]["initial_scale_power"] == 16
    assert config["bf16"] == {"enabled": False}


def test_without_clipping_the_engine_is_told_0():
    flags = {**DEFAULTS, "max_grad_norm": float("inf"), "zero_stage": 0}
    assert engine_config(Namespace(**flags))["gradient_clipping"] == 0.0


def test_trust_ratios_have_no_names_where_weights_are_one_flat_part():
    named = [(name, torch.nn.Parameter(torch.ones(2))) for name in "ab"]
    optimizer = Lamb([{"params": named, "weight_decay": 0.1}])
    flat = torch.nn.Parameter(torch.ones(4))
    flat.grad = torch.ones(4)
    optimizer.param_groups[0]["params"] = [flat]
    optimizer.step()
    assert list(optimizer.trust_ratios()) == ["0.0"]


def test_losses_are_shown_beside_ours():
    table = experiment.losses_table({"our loop": [1.0, 2.0], "stage 1": [1.0, 1.5]})
    assert table.splitlines()[-1] == "| largest difference | 0.0e+00 | 5.0e-01 |"
    assert "| 2 | 2.000000 | 1.500000 |" in table


def test_our_loop_and_the_engine_have_the_same_configuration(tmp_path):
    usual = json.loads((experiment.KIT / "task8" / "phase1.json").read_text())
    ours, *others = experiment.ways(tmp_path).values()
    assert "--deepspeed_config" not in ours
    for number, command in enumerate(others):
        config = json.loads(Path(command[command.index("--deepspeed_config") + 1]).read_text())
        assert config == {**usual, "zero_optimization": {"stage": number}}


@needed
@pytest.mark.slow
def test_every_stage_has_our_losses_and_compiles_nothing(run, tmp_path, monkeypatch):  # noqa: F811
    """Not even where a build was killed: its lock, for which DeepSpeed would wait, stays."""
    lock = tmp_path / "extensions" / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    shared = set(Path("/dev/shm").glob("deepspeed*"))
    ours = run(MORE, workers=2, config=CLIPS)
    weights = load_file(ours.output / "model.safetensors")
    for number in range(4):
        theirs = run(MORE, workers=2, config=stage(number), script=SCRIPT)
        assert (losses(ours) - losses(theirs)).abs().max() < 1e-5
        saved = load_file(theirs.output / "model.safetensors")
        assert saved.keys() == weights.keys()
        assert max((saved[name] - weights[name]).abs().max() for name in weights) < 1e-3
        facts, expected = (json.loads((c.output / "run.json").read_text()) for c in (theirs, ours))
        assert facts["parameters"] == expected["parameters"]
        assert facts["metrics"][0]["mlm_loss"] == pytest.approx(
            expected["metrics"][0]["mlm_loss"], abs=1e-4
        )
        assert lines_of(theirs)[0][-1]["learning_rate"] == lines_of(ours)[0][-1]["learning_rate"]
        errors = "".join("".join(worker.errors) for worker in theirs.workers)
        assert "rror" not in errors
    assert list(lock.parent.parent.rglob("*")) == [lock.parent, lock]
    assert set(Path("/dev/shm").glob("deepspeed*")) == shared


@needed
@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 2, 3])
def test_a_resumed_run_goes_on_bit_for_bit(run, number):  # noqa: F811
    more = f"{MORE} --dropout 0.1 --save_total_limit 9"
    whole = run(f"{more} --save_steps 3", workers=2, config=stage(number), script=SCRIPT)
    before = without_seconds(whole), load_file(whole.output / "model.safetensors")
    resume = f"--resume {whole.output / 'checkpoint-3'}"
    again = run(f"{more} {resume}", workers=2, config=stage(number), script=SCRIPT)
    assert without_seconds(again) == before[0]
    weights = load_file(again.output / "model.safetensors")
    assert all(torch.equal(weights[name], before[1][name]) for name in weights)
    if number == 2:
        flags = "--per_gpu_train_batch_size 8 --gradient_accumulation_steps 2 --max_steps 6"
        flags = f"{flags} --dropout 0.1 --other_world_size {resume}"
        alone = run(flags, config=stage(number), script=SCRIPT, code=2)
        assert "engine of 2 workers has written it" in "\n".join(alone.workers[0].errors)


@needed
@pytest.mark.slow
def test_float16_skips_what_overflows(run):  # noqa: F811
    fp16 = {"enabled": True, "initial_scale_power": 40, "hysteresis": 1}
    crew = run("--max_steps 30", workers=2, config=stage(1, fp16=fp16), script=SCRIPT)
    lines = lines_of(crew)[0]
    assert [line["skipped"] for line in lines][:3] == [True] * 3
    assert not lines[-1]["skipped"]
    assert lines[-1]["loss_scale"] < 2.0**40
