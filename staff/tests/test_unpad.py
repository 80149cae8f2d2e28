"""Computing on real tokens alone: the numbers of the padded computation, and its dropout."""

import logging
from types import SimpleNamespace

from common.cli import parse_args
from common.data.glue import find_glue_task
from common.models.bert import load_model
from common.models.dropout import Dropout, dropout
from common.models.tiny import tiny_tokenizer
from common.models.unpad import FAMILIES, attention_by_row

import pytest
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForSequenceClassification

SMALL = {  # of every family, under its own names
    "vocab_size": len(tiny_tokenizer()),
    **dict.fromkeys(("hidden_size", "dim", "embedding_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_heads"), 4),
    **dict.fromkeys(("intermediate_size", "hidden_dim"), 48),
}
LENGTHS = (9, 40, 1, 23, 40, 17)
CPU = torch.device("cpu")


@pytest.fixture
def load(tmp_path):
    before = transformers.logging.get_verbosity()

    def load(family, *more):
        """A small classifier of a family, as a run with further flags has it."""
        folder = tmp_path / family
        if not folder.exists():
            torch.manual_seed(0)
            config = AutoConfig.for_model(family, **SMALL)
            AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
            tiny_tokenizer().save_pretrained(folder)
        flags = f"--task_name RTE --do_train --no_cuda --model_type {family} --data_dir {tmp_path}"
        flags += f" --max_seq_length 64 --output_dir {tmp_path / 'out'} --model_name_or_path"
        command = [*flags.split(), str(folder), *more]
        args = parse_args("task1/run_glue.py", argv=command, env={})
        world = SimpleNamespace(rank=0, device=CPU)
        return load_model(args, find_glue_task("RTE"), world)[0]

    yield load
    transformers.logging.set_verbosity(before)
    transformers.logging.enable_progress_bar()


def batch_of(model):
    """Rows of several lengths, padded, as the loader gives them."""
    generator = torch.Generator().manual_seed(1)
    shape = len(LENGTHS), max(LENGTHS)
    mask = (torch.arange(shape[1]) < torch.tensor(LENGTHS)[:, None]).long()
    pad = model.config.pad_token_id
    ids = torch.randint(5, SMALL["vocab_size"], shape, generator=generator)
    batch = {
        "input_ids": torch.where(mask.bool(), ids, pad),
        "attention_mask": mask,
        "labels": torch.arange(shape[0]) % 2,
    }
    if model.config.model_type in ("bert", "electra"):
        batch["token_type_ids"] = (torch.arange(shape[1]) > 6) * mask
    return batch


def tokens_entering(model, **batch):
    """(What the model returns, the shape of the input of its first layer's attention)."""
    shapes = []
    inner = getattr(model.base_model, "encoder", None) or model.base_model.transformer
    hook = inner.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append((*args, *kwargs.values())[0].shape), with_kwargs=True
    )
    output = model(**batch)
    hook.remove()
    return output, tuple(shapes[0])


def gradients(model, loss):
    """All gradients of a loss, in one tensor."""
    model.zero_grad()
    loss.backward()
    held = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.cat([grad.flatten() for grad in held])


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_gradients_and_predictions_are_the_padded_ones(load, family):
    padded, unpadded = load(family, "--dropout", "0", "--padded"), load(family, "--dropout", "0")
    batch = batch_of(padded)
    right, shape = tokens_entering(padded, **batch)
    assert shape == (len(LENGTHS), max(LENGTHS), 32)
    ours, shape = tokens_entering(unpadded, **batch)
    assert shape == (1, sum(LENGTHS), 32)
    assert abs(ours.loss - right.loss) < 1e-6
    difference = gradients(unpadded, ours.loss) - gradients(padded, right.loss)
    assert difference.abs().max() < 1e-6
    with torch.no_grad():
        unpadded.eval(), padded.eval()
        difference = unpadded(**batch).logits - padded(**batch).logits
    assert difference.abs().max() < 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_without_dropout_attention_is_a_fused_kernel(load, family):
    model = load(family, "--dropout", "0")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # raises an error where it cannot be had
        model(**batch_of(model)).loss.backward()


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_acts_within_attention_and_follows_the_random_state(load, family):
    model = load(family, "--dropout", "0.2")
    batch = batch_of(model)
    for module in model.modules():  # attention's alone: it hands its rate to a function
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for name, module in model.named_modules():
        if name.endswith((".attention.self", ".attention")) and hasattr(module, "dropout"):
            module.dropout.p = 0.2
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        loss = model(**batch).loss
        found.append((loss.item(), gradients(model, loss)))
    assert found[0][0] == found[1][0] != found[2][0]
    assert found[0][1].equal(found[1][1])
    assert not found[0][1].equal(found[2][1])
    model.eval()
    assert model(**batch).logits.equal(model(**batch).logits)


def test_attention_with_dropout_is_on_average_that_without():
    torch.manual_seed(3)
    parts = torch.randn(3, 1, 4, sum(LENGTHS), 8)  # query, key and value

    def attention(p):
        return attention_by_row(None, *parts, None, list(LENGTHS), dropout=p, scaling=0.4)[0]

    right = attention(0.0)
    assert (attention(1e-6) - right).abs().max() < 1e-5  # so rare that it drops nothing
    drawn = torch.stack([attention(0.3) for _ in range(400)])
    error = drawn.std(0) / 400**0.5
    assert error.max() > 0
    assert ((drawn.mean(0) - right).abs() < 6 * error + 1e-6).all()


def test_a_batch_that_cannot_be_unpadded_stays_as_it_is(load):
    model, padded = load("bert", "--dropout", "0"), load("bert", "--dropout", "0", "--padded")
    whole = batch_of(model)
    late = whole["attention_mask"].clone()
    late[1, 0] = 0
    for batch in (
        {**whole, "attention_mask": None},
        {**whole, "attention_mask": late},
        {**whole, "output_hidden_states": True},
    ):
        ours, shape = tokens_entering(model, **batch)
        assert shape == (len(LENGTHS), max(LENGTHS), 32)
        assert (ours.logits - padded(**batch).logits).abs().max() < 1e-6


def test_another_family_stays_padded_and_says_so(load, caplog):
    with caplog.at_level(logging.WARNING):
        model = load("albert", "--dropout", "0")
    (line,) = [record.message for record in caplog.records if "padding" in record.message]
    assert line == (
        "albert on cpu computes on padding, too; only bert, distilbert, electra, roberta on a CPU "
        "leave it out"
    )
    _, shape = tokens_entering(model, **batch_of(model))
    assert shape[0] == len(LENGTHS)
    caplog.clear()
    load("albert", "--dropout", "0", "--padded")
    assert not [record for record in caplog.records if "padding" in record.message]


def test_a_saved_model_is_an_ordinary_one(load, tmp_path):
    model = load("bert", "--dropout", "0").eval()
    model.save_pretrained(tmp_path / "saved")
    assert "unpadded" not in (tmp_path / "saved" / "config.json").read_text()
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    batch = batch_of(model)
    assert (again(**batch).logits - model(**batch).logits).abs().max() < 1e-6


def test_bfloat16_is_unpadded_too(load):
    if not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        pytest.skip("this machine has no bfloat16 arithmetic")
    plain, half = load("bert", "--dropout", "0"), load("bert", "--dropout", "0", "--fp16")
    dropped = load("bert", "--dropout", "0.1", "--fp16")
    ours, shape = tokens_entering(half, **batch_of(half))
    assert shape == (1, sum(LENGTHS), 32)
    assert abs(ours.loss - plain(**batch_of(plain)).loss) < 1e-2
    assert gradients(dropped, dropped(**batch_of(dropped)).loss).isfinite().all()


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_dropout_zeroes_the_share_p_independently_and_keeps_the_mean(p):
    torch.manual_seed(5)
    shape = 500, 1003
    input = torch.ones(shape, requires_grad=True)
    output = Dropout(p)(input)
    size = input.numel()
    zero = output == 0
    sigma = (p * (1 - p) / size) ** 0.5
    assert abs(zero.double().mean() - p) < 5 * sigma + 2**-17
    assert output[~zero].unique().numel() == 1
    assert abs(output.double().mean() - 1) < 6 * sigma / (1 - p)
    centered = (zero.double() - p).flatten()
    for lag in (1, 2, 3, 4, 1003, size // 2):  # four neighbors share 64 bits
        covariance = (centered[lag:] * centered[:-lag]).mean()
        assert abs(covariance) < 5 * p * (1 - p) / (size - lag) ** 0.5 + 1e-9
    output.sum().backward()
    assert input.grad is not None
    assert input.grad.equal(output)  # of ones: the mask and its scale, forward as backward


def test_masks_follow_torchs_random_state_and_differ_between_calls_and_seeds():
    ones = torch.ones(4001)
    torch.manual_seed(7)
    first = dropout(ones, 0.4)
    state = torch.get_rng_state()
    second = dropout(ones, 0.4)
    torch.set_rng_state(state)  # as a checkpoint restores it
    assert dropout(ones, 0.4).equal(second)
    torch.manual_seed(8)
    other = dropout(ones, 0.4)
    for one, another in ((first, second), (first, other), (second, other)):
        same = ((one == 0) == (another == 0)).double().mean()
        assert abs(same - 0.52) < 0.05  # 0.4^2 + 0.6^2


def test_dropout_has_its_bounds_and_is_off_in_evaluation():
    input = torch.randn(3, 5)
    assert dropout(input, 0.0).equal(input)
    assert dropout(input, 1.0).equal(torch.zeros(3, 5))
    assert Dropout(0.5).eval()(input).equal(input)
