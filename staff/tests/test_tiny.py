"""The built-in tiny BERT: the same weights everywhere, a vocabulary without gaps, and it learns."""

import hashlib
import math
from pathlib import Path

from common.models.tiny import tiny_model, tiny_tokenizer

import pytest
import torch
from torch.nn.utils import clip_grad_norm_
from transformers import AutoModelForSequenceClassification, AutoTokenizer

RTE = Path(__file__).parents[2] / "sample_data" / "RTE"
WEIGHTS = "d119c32e53073bc4a8079a5d8d04fdc32c4fe94a11ff50c3be5cb864da8d1c42"


def read(split):
    """[premise, hypothesis, label] of every row of the sample."""
    lines = (RTE / f"{split}.tsv").read_text().splitlines()[1:]
    return [line.split("\t")[1:] for line in lines]


def digest(model):
    """The sha256 of all weights, by name."""
    sha = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        sha.update(name.encode() + weight.numpy().tobytes())
    return sha.hexdigest()


@pytest.mark.parametrize("seed", [1, 2])
def test_the_weights_are_the_pinned_ones_under_every_seed(seed):
    torch.manual_seed(seed)
    assert digest(tiny_model(2)) == WEIGHTS


def test_making_a_model_leaves_the_random_state_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    tiny_model(2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("num_labels", [1, 2, 3])
def test_only_the_classifier_depends_on_the_number_of_labels(num_labels):
    model, binary = tiny_model(num_labels), tiny_model(2)
    assert digest(model.bert) == digest(binary.bert)
    labels = torch.tensor([0.5]) if num_labels == 1 else torch.tensor([num_labels - 1])
    output = model(**tiny_tokenizer()("a", "b", return_tensors="pt"), labels=labels)
    assert output.logits.shape == (1, num_labels)
    assert output.loss.isfinite()


def test_it_is_small_enough_for_a_slow_network():
    assert 300_000 < sum(weight.numel() for weight in tiny_model(2).parameters()) < 1_000_000


def test_no_word_of_the_sample_is_unknown_or_in_pieces():
    tokenizer = tiny_tokenizer()
    for split in ("train", "dev"):
        for premise, hypothesis, _ in read(split):
            tokens = tokenizer.tokenize(premise, hypothesis)
            assert not [t for t in tokens if t == tokenizer.unk_token or t.startswith("##")]


def test_other_english_text_is_never_unknown():
    tokenizer = tiny_tokenizer()
    every = "".join(map(chr, range(32, 127)))
    text = f"{every} Caf\u00e9 owners rejected an unprecedented jurisdiction, e.g. at X9-Zürich's."
    assert tokenizer.unk_token not in tokenizer.tokenize(text)


def test_it_survives_being_saved_and_loaded(tmp_path):
    model, tokenizer = tiny_model(3).eval(), tiny_tokenizer()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    pair = ("Ivan Reed moved to OSLO.", "A café?")
    batch = tokenizer(*pair, return_tensors="pt")
    assert loaded(*pair).input_ids == batch.input_ids[0].tolist()
    assert loaded(*pair).token_type_ids == batch.token_type_ids[0].tolist()
    assert loaded.model_max_length == tokenizer.model_max_length == 512
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert digest(again) == digest(model)
    assert torch.equal(again(**batch).logits, model(**batch).logits)


def batch_of(rows):
    """Padded tensors of some rows; label 0 is entailment."""
    premises, hypotheses, labels = zip(*rows, strict=True)
    batch = tiny_tokenizer()(list(premises), list(hypotheses), padding=True, return_tensors="pt")
    return batch | {"labels": torch.tensor([int(label != "entailment") for label in labels])}


@torch.no_grad()
def accuracy(model):
    """The share of the dev rows that are right."""
    batch = batch_of(read("dev"))
    return (model.eval()(**batch).logits.argmax(1) == batch["labels"]).float().mean().item()


@pytest.mark.slow
def test_three_epochs_of_training_learn_the_sample():
    rows, model, losses, metric = read("train"), tiny_model(2), [], []
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, eps=1e-8, weight_decay=0)
    steps = 3 * math.ceil(len(rows) / 64)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    torch.manual_seed(42)
    for _ in range(3):
        model.train()
        for share in torch.randperm(len(rows)).split(64):
            optimizer.zero_grad()
            loss = model(**batch_of([rows[index] for index in share])).loss
            loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        metric.append(accuracy(model))
    assert all(map(math.isfinite, losses))
    assert losses[:3] == pytest.approx([math.log(2)] * 3, abs=0.1)
    assert metric[-1] > max(0.7, metric[0]), metric
