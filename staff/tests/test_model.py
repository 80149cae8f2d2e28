"""The model of a run: where it comes from, its seeds, its dropout, its optimizer."""

import copy
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from common.cli import parse_args
from common.data.glue import find_glue_task
from common.errors import UserError
from common.models.bert import load_model, weights_digest
from common.models.optimizer import make_optimizer
from common.models.tiny import tiny_model, tiny_tokenizer

import pytest
import safetensors.torch
import torch
import transformers
from transformers import AutoModel

ROOT = Path(__file__).parents[2]
FLAGS = "--task_name RTE --do_train --no_cuda"


@pytest.fixture(autouse=True)
def verbosity():
    """load_model sets it for the process."""
    before = transformers.logging.get_verbosity()
    yield
    transformers.logging.set_verbosity(before)
    transformers.logging.enable_progress_bar()


@pytest.fixture
def load(tmp_path):
    def load(name="tiny", *more, rank=0):
        """Model and tokenizer, as a rank of a run with further flags has them."""
        folders = ["--data_dir", str(tmp_path), "--output_dir", str(tmp_path / "out")]
        command = [*FLAGS.split(), *folders, "--model_name_or_path", str(name), *more]
        args = parse_args("task1/run_glue.py", argv=command, env={})
        world = SimpleNamespace(rank=rank, device=torch.device("cpu"))
        return load_model(args, find_glue_task(args.task_name), world)

    return load


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A folder with a BERT that has no classifier yet, as bert-base-cased."""
    folder = tmp_path_factory.mktemp("checkpoint")
    tiny_model(2).bert.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def logits(model, seed=None):
    """What it says of two sentences while training."""
    if seed is not None:
        torch.manual_seed(seed)
    ids = torch.arange(5, 25).view(2, 10)
    with torch.no_grad():
        return model.train()(ids).logits


@pytest.mark.parametrize(("task", "labels"), [("RTE", 2), ("MNLI", 3), ("STS-B", 1)])
@pytest.mark.parametrize("name", ["tiny", "checkpoint"])
def test_the_classifier_has_an_output_per_class_or_one_for_a_score(
    load, checkpoint, name, task, labels
):
    model, _ = load("tiny" if name == "tiny" else checkpoint, "--task_name", task)
    assert logits(model).shape == (2, labels)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_a_checkpoints_weights_are_used_and_its_words(load, checkpoint):
    model, tokenizer = load(checkpoint)
    saved = AutoModel.from_pretrained(checkpoint, local_files_only=True).state_dict()
    assert all(tensor.equal(saved[name]) for name, tensor in model.bert.state_dict().items())
    assert tokenizer("a dog")["input_ids"] == tiny_tokenizer()("a dog")["input_ids"]


def test_new_weights_are_alike_on_all_ranks_and_follow_the_seed(load, checkpoint):
    first, second = (load(checkpoint, rank=rank)[0] for rank in (0, 1))
    other = load(checkpoint, "--seed", "43")[0]
    assert weights_digest(first) == weights_digest(second) != weights_digest(other)
    assert not first.classifier.weight.equal(other.classifier.weight)
    assert weights_digest(load("tiny")[0]) == weights_digest(load("tiny", "--seed", "43")[0])


def test_dropout_differs_between_ranks_and_not_between_runs(load):
    first, again, second = (logits(load("tiny", rank=rank)[0]) for rank in (0, 0, 1))
    assert first.equal(again)
    assert not first.equal(second)


@pytest.mark.parametrize("name", ["tiny", "checkpoint"])
def test_dropout_0_leaves_nothing_to_chance(load, checkpoint, name):
    name = "tiny" if name == "tiny" else checkpoint
    model = load(name, "--dropout", "0")[0]
    assert logits(model).equal(logits(model))
    assert logits(model).equal(logits(model.eval()))
    assert not logits(load(name)[0], 1).equal(logits(load(name)[0], 2))


@pytest.mark.parametrize("name", ["tiny", "checkpoint"])
def test_a_model_is_in_training_mode_from_its_first_step_on(load, checkpoint, name):
    """`from_pretrained` returns a model in evaluation mode, in which dropout does nothing."""
    model, _ = load("tiny" if name == "tiny" else checkpoint, "--dropout", "0.3")
    assert all(module.training for module in model.modules())


def test_dropout_is_the_checkpoints_unless_given(load):
    def rates(*more):
        modules = load("tiny", *more)[0].modules()
        return {module.p for module in modules if isinstance(module, torch.nn.Dropout)}

    assert (rates(), rates("--dropout", "0.5"), rates("--dropout", "-1")) == ({0.1}, {0.5}, {0.1})


def test_the_digest_changes_with_any_element_and_with_nothing_else(load):
    model, _ = load("tiny")
    model.register_buffer("counts", torch.zeros(3, dtype=torch.int64))
    digest = weights_digest(model)
    assert weights_digest(copy.deepcopy(model).train()) == digest == weights_digest(model.eval())
    for name, tensor in model.state_dict().items():
        for place in (0, -1):
            flat = tensor.view(-1)
            before = flat[place].clone()
            flat[place] += 1 if tensor.dtype == torch.int64 else torch.finfo(tensor.dtype).eps * 4
            assert weights_digest(model) != digest, f"element {place} of {name}"
            flat[place] = before
    assert weights_digest(model) == digest


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("tiny --model_type roberta", "tiny holds a bert; pass --model_type bert"),
        ("tiny --max_seq_length 513", "--max_seq_length 513: .* only 512 positions"),
        ("/no/such/folder", "--model_name_or_path /no/such/folder: no such folder"),
        ("./no-such-folder", r"--model_name_or_path \./no-such-folder: no such folder"),
        ("{empty}", "--model_name_or_path .*empty: .*; or use the built-in `tiny` model"),
        ("{three}", r"--model_name_or_path .*three: .*do not fit .* RTE's 2 labels; give a model"),
        ("{cut}", "--model_name_or_path .*cut: a file is corrupt or incomplete"),
    ],
)
def test_a_model_that_cannot_be_had_is_told_with_the_fix(
    load, checkpoint, tmp_path, flags, message
):
    empty, cut, three = tmp_path / "empty", tmp_path / "cut", tmp_path / "three"
    tiny_model(3).save_pretrained(three)
    tiny_tokenizer().save_pretrained(three)
    empty.mkdir()
    shutil.copytree(checkpoint, cut)
    weights = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(UserError, match=message):
        load(*flags.format(empty=empty, cut=cut, three=three).split())


@pytest.mark.timeout(120)
def spoil(folder, part):
    """Take a part of a checkpoint away, or spoil it."""
    config, weights = folder / "config.json", folder / "model.safetensors"
    if part == "tokenizer":
        for file in folder.glob("tokenizer*"):
            file.unlink()
    elif part == "weights":
        tensors = safetensors.torch.load_file(weights)
        tensors["encoder.layer.1.output.dense.weight"][3, 5] = float("nan")
        safetensors.torch.save_file(tensors, weights, {"format": "pt"})
    else:
        config.write_text(json.dumps(json.loads(config.read_text()) | part))


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (
            "tokenizer",
            r"the model has 2000 tokens, but the tokenizer of .* has 5; .*json",
        ),
        ("weights", r"weight bert.encoder.layer.1.output.dense.weight is not finite"),
        ({"num_hidden_layers": 3}, r"names 3 layers, but model.safetensors holds 2"),
        ({"num_hidden_layers": 1}, r"names 1 layers, but model.safetensors holds 2"),
        ({"hidden_size": 64}, r"its weights do not fit its config.json or"),
        ({"vocab_size": 50}, r"its weights do not fit its config.json or"),
    ],
)
def test_a_checkpoint_that_is_half_there_is_refused(load, checkpoint, tmp_path, part, said):
    folder = shutil.copytree(checkpoint, tmp_path / "half")
    spoil(folder, part)
    with pytest.raises(UserError, match=said):
        load(folder)


def test_a_hub_that_cannot_be_reached_is_told_in_one_line(tmp_path):
    """With a port that nothing listens on, while we hold it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        env |= {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        env |= {"HF_ENDPOINT": f"http://127.0.0.1:{held.getsockname()[1]}"}
        command = [sys.executable, ROOT / "task1" / "run_glue.py", *FLAGS.split()]
        command += ["--model_name_or_path", "bert-base-cased", "--data_dir", tmp_path]
        command += ["--output_dir", tmp_path / "out"]
        ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("run_glue.py: --model_name_or_path bert-base-cased: the hub (http://127")
    assert "is not responding, and it is not in the cache" in line
    assert "hf download bert-base-cased --local-dir FOLDER" in line


@pytest.fixture
def args(tmp_path):
    def args(more):
        command = f"{FLAGS} --model_name_or_path tiny --data_dir {tmp_path} {more}"
        command += f" --output_dir {tmp_path / 'out'}"
        return parse_args("task1/run_glue.py", argv=command.split(), env={})

    return args


def test_biases_and_layer_norms_do_not_decay(args):
    model = tiny_model(2)
    model.bert.embeddings.requires_grad_(False)
    optimizer, _ = make_optimizer(model, args("--weight_decay 0.3 --adam_epsilon 1e-5"), 10)
    decayed, plain = optimizer.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.3, 0.0)
    assert decayed["eps"] == plain["eps"] == 1e-5
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    in_groups = [id(p) for group in (decayed, plain) for p in group["params"]]
    assert len(in_groups) == len(set(in_groups))
    assert set(in_groups) == trained
    # In a BERT whatever is a vector is a bias or a LayerNorm's weight, and nothing else is.
    assert {p.dim() for p in decayed["params"]} == {2}
    assert {p.dim() for p in plain["params"]} == {1}


def test_the_learning_rate_warms_up_and_decays_in_straight_lines(args):
    optimizer, scheduler = make_optimizer(
        tiny_model(2), args("--learning_rate 0.4 --warmup_steps 2"), 6
    )
    rates = []
    for _ in range(7):
        rates.append(scheduler.get_last_lr())
        optimizer.step()
        scheduler.step()
    expected = [0, 0.2, 0.4, 0.3, 0.2, 0.1, 0]
    assert rates == [pytest.approx([rate] * 2) for rate in expected]
