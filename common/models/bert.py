"""BERT with a classifier on top, and its tokenizer."""

import hashlib
import os
import re
import socket
from pathlib import Path
from pickle import UnpicklingError
from urllib.parse import urlsplit

from common.errors import UserError
from common.models.complete import check_complete
from common.models.dropout import use_fast_dropout
from common.models.tiny import tiny_model, tiny_tokenizer
from common.models.unpad import unpad

import torch
import transformers
from huggingface_hub import constants
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)


def load_model(args, glue_task, world):
    """The classifier for `glue_task`, on this worker's device, and its tokenizer.

    New weights are drawn from --seed, alike on every rank; afterwards the random state, and with
    it dropout, differs between ranks. Raises UserError for a checkpoint that cannot be loaded.
    """
    transformers.logging.disable_progress_bar()
    if world.rank > 0:
        transformers.logging.set_verbosity_error()  # rank 0 reports for all
    torch.manual_seed(args.seed)
    num_labels = len(glue_task.labels or ("score",))
    tiny = re.fullmatch(r"tiny(?::([1-9]\d?))?", args.model_name_or_path)
    if tiny:
        model, tokenizer = tiny_model(num_labels, int(tiny[1] or 2)), tiny_tokenizer()
    else:
        model, tokenizer = load_checkpoint(args, num_labels)
    if model.config.model_type != args.model_type:
        raise UserError(
            f"--model_type {args.model_type}: {args.model_name_or_path} holds a "
            f"{model.config.model_type}; pass --model_type {model.config.model_type}"
        )
    make_ready(model, args, world)
    if args.fp16:
        check_bfloat16(world.device)
        model.forward = torch.autocast(world.device.type, torch.bfloat16)(model.forward)
    torch.manual_seed(args.seed + world.rank)
    return model, tokenizer


def make_ready(model, args, world):
    """Set a model's dropout and put it on this worker's device, to train on real tokens alone.

    Raises UserError where --max_seq_length is more than its positions.
    """
    longest = getattr(model.config, "max_position_embeddings", args.max_seq_length)
    if args.max_seq_length > longest:
        raise UserError(
            f"--max_seq_length {args.max_seq_length}: this model has only {longest} positions"
        )
    if args.dropout >= 0:
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = args.dropout
    use_fast_dropout(model)
    if not args.padded:
        unpad(model, world)
    model.to(world.device).train()  # from_pretrained returns it in evaluation mode: no dropout


def load_checkpoint(args, num_labels):
    """A checkpoint and its tokenizer from a folder, from the hub, or from the hub's cache."""
    name = args.model_name_or_path
    local = Path(name).is_dir()
    if not local and (name.count("/") > 1 or name.startswith((".", "/", "~"))):
        raise UserError(f"--model_name_or_path {name}: no such folder (relative to {Path.cwd()})")
    offline = not local and not hub_answers()
    where = {"cache_dir": args.cache_dir or None, "local_files_only": offline}
    lower = {"do_lower_case": True} if args.do_lower_case else {}
    try:
        model, tokenizer = from_pretrained(args, num_labels, lower, where)
        check_complete(model, tokenizer, args)
        return model, tokenizer
    except (NotImplementedError, UserError):
        raise  # the code is not finished, or what is missing has been said
    except (OSError, ValueError, RuntimeError, SafetensorError, UnpicklingError) as error:
        reason, fix = explain_checkpoint(error, args, num_labels, offline)
        raise UserError(
            f"--model_name_or_path {name}: {reason}; {fix}; or use the built-in `tiny` model, "
            "which needs no download"
        ) from None


def explain_checkpoint(error, args, num_labels, offline):
    """Why a checkpoint could not be loaded, and what to do."""
    name, reason = args.model_name_or_path, str(error).strip().splitlines()[0]
    if "ignore_mismatched_sizes" in str(error):
        labels = (
            "its weights do not fit its config.json or a classifier with "
            f"{args.task_name}'s {num_labels} labels"
        )
        return labels, "give a model without a classifier, or one for as many labels"
    if offline:
        reason = f"the hub ({constants.ENDPOINT}) is not responding, and it is not in the cache"
        fix = f"on a machine with a network, run `hf download {name} --local-dir FOLDER`"
        return reason, f"{fix} and give that FOLDER here"
    if not isinstance(error, (OSError, ValueError)):
        reason = f"a file is corrupt or incomplete ({reason})"
    if Path(name).is_dir():
        return reason, "download the folder's files again"
    return reason, f"run `hf download {name} --local-dir FOLDER` and give that FOLDER here"


# SOLUTION(task1): load config, tokenizer and model with the Auto classes' from_pretrained
def from_pretrained(args, num_labels, lower, where):
    """The pretrained model in float32, with a new classifier for `num_labels`, and its tokenizer.

    --config_name and --tokenizer_name, if given, replace the model's own. `where` goes to all three
    calls, `lower` to the tokenizer's.
    """
    name = args.model_name_or_path
    config = AutoConfig.from_pretrained(
        args.config_name or name, num_labels=num_labels, finetuning_task=args.task_name, **where
    )
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer_name or name, **lower, **where)
    model = AutoModelForSequenceClassification.from_pretrained(
        name, config=config, dtype=torch.float32, **where
    )
    return model, tokenizer


def hub_answers():
    """Whether the hub responds within 5 s; its own client would try for 25."""
    if constants.HF_HUB_OFFLINE:
        return False
    hub = urlsplit(os.environ.get("HTTPS_PROXY") or constants.ENDPOINT)
    try:
        port = hub.port or {"http": 80}.get(hub.scheme, 443)
        socket.create_connection((hub.hostname, port), timeout=5).close()
    except OSError:
        return False
    return True


def check_bfloat16(device, flag="--fp16"):
    """Raise UserError if bfloat16 would be emulated, many times slower than float32."""
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if not native:
        raise UserError(
            f"{flag}: this machine's {device.type} has no bfloat16 arithmetic, so training "
            f"would be slower than in float32; leave {flag} out"
        )


def weights_digest(model):
    """SHA-256, in hex, of all parameters and buffers: equal only for bitwise equal weights."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
