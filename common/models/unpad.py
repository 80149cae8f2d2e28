"""The tokens of a batch end to end, without padding, through the whole encoder.

Everything in an encoder but attention treats each token alone: padding is left out where a batch
enters, and attention goes through the rows one by one. The classifiers of these families read the
first token of each row, so nothing else leaves the last layer. The model is called as ever; its
losses and gradients are those of the padded computation.
"""

import logging

from common.models.dropout import Masked, draw_mask

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

FAMILIES = ("bert", "distilbert", "electra", "roberta")  # of encoders that this fits
NAME = "unpadded"
log = logging.getLogger(__name__)


def unpad(model, world) -> None:
    """Make a classifier compute on real tokens alone, if its family and device are known to gain.

    Rank 0 reports that a model stays padded.
    """
    config, device = model.config, world.device.type
    fits = config.model_type in FAMILIES and not config.chunk_size_feed_forward
    if not fits or device != "cpu":
        if world.rank == 0:
            known = f"{', '.join(FAMILIES)} on a CPU"
            what = f"{config.model_type} on {device}"
            log.warning("%s computes on padding, too; only %s leave it out", what, known)
        return
    AttentionInterface.register(NAME, attention_by_row)
    AttentionMaskInterface.register(NAME, sdpa_mask)  # for batches that stay padded
    model.set_attn_implementation(NAME)
    base = model.base_model
    base.register_forward_pre_hook(drop_padding, with_kwargs=True)
    distil = config.model_type == "distilbert"
    last = base.transformer if distil else base.encoder.layer[-1].attention
    last.register_forward_hook(keep_first_tokens, with_kwargs=True)


def drop_padding(base, args, kwargs):
    """Replace a batch of shape (rows, longest) by one row of all its tokens.

    A batch stays padded if it has no mask, or one that hides a row's first token, or if the caller
    wants each layer's output. `read`, of the shape of the batch, marks the tokens of the last layer
    that the caller reads; without it they are the rows' first.
    """
    given = dict(zip(("input_ids",), args, strict=False)) | kwargs
    ids, mask = given.get("input_ids"), given.get("attention_mask")
    inner = given.get("output_hidden_states") or given.get("output_attentions")
    if inner or ids is None or mask is None or mask.dim() != 2 or not mask[:, 0].all():
        return None
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    if hasattr(base.embeddings, "create_position_ids_from_input_ids"):  # RoBERTa counts otherwise
        positions = base.embeddings.create_position_ids_from_input_ids(
            ids, base.embeddings.padding_idx
        )
    types, real = given.get("token_type_ids"), mask.bool()
    flat = {"input_ids": ids, "position_ids": positions, "token_type_ids": types}
    given |= {name: values[real][None] for name, values in flat.items() if values is not None}
    if (read := given.get("read")) is not None:
        given["read"] = read[real].nonzero().squeeze(1)
    return (), given | {"attention_mask": None, "row_lengths": real.sum(1).tolist()}


def keep_first_tokens(_module, _args, kwargs, output):
    """Reduce what a module returns, (1, tokens, hidden), to first tokens, (rows, 1, hidden).

    Where the caller reads other tokens of the last layer, reduce it to these, (1, read, hidden).
    """
    if "row_lengths" not in kwargs:
        return output
    if kwargs.get("read") is not None:
        return output[0][:, kwargs["read"]], *output[1:]
    lengths = torch.tensor(kwargs["row_lengths"])
    first = lengths.cumsum(0) - lengths
    if isinstance(output, tuple):  # of an attention layer, with the weights
        return output[0][0, first, None], *output[1:]
    output.last_hidden_state = output.last_hidden_state[0, first, None]
    return output


def attention_by_row(  # noqa: PLR0913 transformers calls it
    module, query, key, value, attention_mask, row_lengths=None, dropout=0.0, **kwargs
):
    """transformers' attention function: (1, heads, tokens, width) to (1, tokens, heads, width)."""
    if row_lengths is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, **kwargs
        )
    parts = (part.split(row_lengths, dim=2) for part in (query, key, value))
    rows = list(zip(*parts, strict=True))
    scale = kwargs["scaling"]
    if dropout:
        outputs = with_dropout(rows, dropout, scale)
    else:  # a fused kernel, which on a CPU takes four dimensions, and has no dropout
        outputs = [scaled_dot_product_attention(*row, scale=scale) for row in rows]
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def with_dropout(rows, p, scale):
    """Attention of each row, (1, heads, length, width), its weights dropped with probability p."""
    sizes = [query.shape[1] * query.shape[2] ** 2 for query, _, _ in rows]
    mask, scale_up = draw_mask(sum(sizes), p)
    outputs = []
    for (query, key, value), kept in zip(rows, mask.split(sizes), strict=True):
        weights = (query * scale @ key.transpose(2, 3)).softmax(-1)
        outputs.append(Masked.apply(weights, kept.view(weights.shape), scale_up) @ value)
    return outputs
