"""BERT with the two heads of its pre-training, computed only where they are read."""

from dataclasses import dataclass
from typing import Any

from common.data.pretraining import IGNORED
from common.errors import UserError
from common.models.bert import check_bfloat16, make_ready
from common.models.tiny import HIDDEN, LAYERS, tiny_model
from common.models.unpad import NAME

import torch
import transformers
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, BertConfig
from transformers.utils import ModelOutput

TASK1 = "tiny-task1"  # as --model_name_or_path


@dataclass
class Losses(ModelOutput):
    """What a forward pass returns: of the masked tokens, and of the pairs.

    `loss` has their mean losses, `counts` how many they are, `right` how many of them are predicted
    right: each of shape (2,).
    """

    loss: torch.Tensor | None = None
    counts: torch.Tensor | None = None
    right: torch.Tensor | None = None


class BertForPreTraining(transformers.BertForPreTraining):
    """transformers' model, whose vocabulary's logits are computed for masked tokens alone."""

    def forward(self, input_ids, token_type_ids, attention_mask, labels, next_sentence_label):
        """The losses of a batch: (rows, tokens) int64, and for `next_sentence_label` (rows,)."""
        read = labels != IGNORED
        read[:, 0] = True  # [CLS], of which a row's pair is judged
        given = {"token_type_ids": token_type_ids, "attention_mask": attention_mask}
        if self.config._attn_implementation == NAME:
            if read[attention_mask == 0].any():
                raise ValueError(f"labels: padding has some; it is to have {IGNORED}")
            hidden = self.bert(input_ids, read=read, **given).last_hidden_state[0]
        else:
            hidden = self.bert(input_ids, **given).last_hidden_state[read]
        labels, first = labels[read], read.nonzero()[:, 1] == 0
        masked = labels != IGNORED
        words = self.cls.predictions(hidden[masked]).float()
        pooled = self.bert.pooler(hidden[first, None])  # pyright: ignore[reportOptionalCall]
        pairs = self.cls.seq_relationship(pooled).float()
        answers = ((words, labels[masked]), (pairs, next_sentence_label))
        sums = [cross_entropy(logits, labels, reduction="sum") for logits, labels in answers]
        right = [(logits.argmax(1) == labels).sum() for logits, labels in answers]
        counts = torch.tensor([len(labels) for _, labels in answers], device=hidden.device)
        loss = torch.stack(sums) / counts.clamp(min=1)
        return Losses(loss=loss, counts=counts, right=torch.stack(right))


def load_model(args, tokenizer, world):
    """The model on this worker's device, for the tokenizer of a corpus.

    New weights are drawn from --seed, alike on every rank; afterwards the random state differs
    between ranks. Raises UserError for weights of another vocabulary, or that cannot be loaded.
    """
    transformers.logging.disable_progress_bar()
    if world.rank > 0:
        transformers.logging.set_verbosity_error()
    torch.manual_seed(args.seed)
    name = args.model_name_or_path
    if name in ("tiny", TASK1):
        model = new_model(args, len(tokenizer))
    else:
        model = load_weights(name, tokenizer)
    make_ready(model, args, world)
    if args.bf16:
        check_bfloat16(world.device, "--bf16")
    if args.fp16 or args.bf16:
        dtype = torch.float16 if args.fp16 else torch.bfloat16
        model.forward = torch.autocast(world.device.type, dtype)(model.forward)
    torch.manual_seed(args.seed + world.rank)
    return model


def new_model(args, vocab_size):
    """A model with new weights, or with those that task 1's `tiny` starts from.

    In those words attend to their like. From weights without such structure the pairs stay at
    chance for hundreds of steps.
    """
    model = BertForPreTraining(configuration(args, vocab_size))
    if args.model_name_or_path == TASK1:
        model.bert.load_state_dict(tiny_model(2, vocab_size=vocab_size).bert.state_dict())
        with torch.no_grad():  # its embeddings, with which words are predicted, are large
            model.cls.predictions.transform.LayerNorm.weight.fill_(0.1)
    return model


def configuration(args, vocab_size) -> Any:
    """The configuration of a model with new weights: --config_name's, or that of `tiny`."""
    if args.config_name:
        try:
            config = AutoConfig.from_pretrained(args.config_name, local_files_only=True)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"--config_name {args.config_name}: {reason}") from None
        if config.model_type != "bert":
            raise UserError(f"--config_name {args.config_name}: is a {config.model_type}, not bert")
        config.vocab_size = vocab_size
        return config
    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=HIDDEN,
        num_hidden_layers=len(LAYERS),
        num_attention_heads=2,
        intermediate_size=HIDDEN,
    )


def load_weights(name, tokenizer):
    """The weights in a folder, or of the hub; heads that it lacks are new."""
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(name).get_vocab()
        model = BertForPreTraining.from_pretrained(name, dtype=torch.float32)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"--model_name_or_path {name}: {reason}") from None
    if theirs != tokenizer.get_vocab():
        raise UserError(
            f"--model_name_or_path {name}: has another vocabulary than the corpus "
            f"({len(theirs)} tokens, and {len(tokenizer)}); go on with the corpus that it was "
            "trained on, or train `tiny` on this one"
        )
    return model
