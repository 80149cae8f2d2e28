"""What pre-training starts from: the configuration, the model and its data, the optimizer."""

import json
import math
from pathlib import Path

from common.checkpoint_files import TRAINING, complete_ones, read_tensors, step_of
from common.data.corpus import Corpus
from common.data.loader import Data, steps_of_run
from common.data.pretraining import PretrainingBatches, PretrainingRows, load_tokenizer
from common.deepspeed_config import ACCUMULATED, MICRO, read_config
from common.errors import UserError
from common.models.bert import weights_digest
from common.models.lamb import Lamb
from common.models.loss_scaler import LossScaler
from common.models.optimizer import is_decayed
from common.models.pretraining import load_model
from common.models.schedules import (
    constant,
    linear,
    polynomial,
    scheduler_of,
    warmup_linear_decay_exp,
)
from common.tasks import SCRIPTS
from common.workers.world import check_identical_across_ranks

import torch
import torch.distributed as dist

KIT = Path(__file__).parents[1]
LENGTHS = {"1": 128, "2": 512}  # tokens of a pair, by phase
EVALUATED = 512  # rows
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # of AdamW and of LAMB


def load(args, world):
    """The model, on this worker's device, and its Data; fills `args` in from the configuration.

    Raises UserError for what cannot be loaded, and where data or weights are not the same on all
    ranks: it names the ranks that differ.
    """
    apply_config(args)
    corpus = Corpus(args.data_dir)
    rows = PretrainingRows(corpus, args.max_seq_length, args.seed)
    tokenizer = load_tokenizer(corpus)
    model = load_model(args, tokenizer, world)
    splits = {"train": rows}
    batches = PretrainingBatches(splits, tokenizer, args, world)
    total, size = steps_of_run(args, batches), args.per_gpu_eval_batch_size
    facts = {"the configuration": args.settings, "weights": weights_digest(model)}
    check_identical_across_ranks(world, {**facts, "the corpus": rows.digest})
    return model, Data(None, tokenizer, splits, batches, total, size)  # pyright: ignore


def apply_config(args):
    """Read the configuration: `args.settings` is all of it, as JSON; flags have its values."""
    args.max_seq_length = args.max_seq_length or LENGTHS[args.phase]
    path = Path(args.deepspeed_config or KIT / "task8" / f"phase{args.phase}.json")
    settings = read_config(path, args)
    stage, task = settings["zero_optimization.stage"], SCRIPTS.get(args.task)
    if stage and not (task and task.extra):
        raise UserError(
            f"{path}: zero_optimization.stage {stage}: this script keeps all on every worker, "
            "which is stage 0; task8/pretrain_deepspeed.py has the others"
        )
    args.per_gpu_train_batch_size = settings[MICRO]
    args.gradient_accumulation_steps = settings[ACCUMULATED]
    args.max_grad_norm = settings["gradient_clipping"] or float("inf")
    args.zero_stage = stage
    args.fp16, args.bf16 = settings["fp16.enabled"], settings["bf16.enabled"]
    args.allow_nan |= args.fp16  # overflows are to be expected, and the loss scaler counts them
    args.settings = json.dumps(settings)


def make_optimizer(model, args, total_steps):
    """(optimizer, scheduler, loss scaler) as the configuration has them.

    In phase 2 the optimizer's moments are those with which phase 1 ended; the schedule begins
    again. A checkpoint of the optimizer holds the other two.
    """
    settings = json.loads(args.settings)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    decay = settings["optimizer.params.weight_decay"]
    optimizer = optimizer_of(
        [
            {"params": [one for one in named if is_decayed(one[0])], "weight_decay": decay},
            {"params": [one for one in named if not is_decayed(one[0])], "weight_decay": 0.0},
        ],
        settings,
    )
    if args.phase == "2":
        take_moments(optimizer, args)
    scheduler = make_scheduler(optimizer, settings, args.warmup_steps, total_steps)
    scaler = LossScaler(model.device.type, settings)
    parts = {"scheduler": scheduler, "scaler": scaler}
    optimizer.register_state_dict_post_hook(
        lambda _, state: {**state, **{name: part.state_dict() for name, part in parts.items()}}
    )

    def load_parts(_, state):
        for name, part in parts.items():
            part.load_state_dict(state[name])

    optimizer.register_load_state_dict_pre_hook(load_parts)
    return optimizer, scheduler, scaler


def optimizer_of(groups, settings):
    """AdamW, or LAMB. AdamW without bias correction, which torch has not, is LAMB's update, too."""
    names = ("lr", "betas", "eps")
    options = {name: settings[f"optimizer.params.{name}"] for name in names}
    corrected = settings["optimizer.params.bias_correction"]
    bounds = {name: settings[f"optimizer.params.{name}"] for name in ("min_coeff", "max_coeff")}
    if settings["optimizer.type"] == "Lamb":
        return Lamb(groups, **options, **bounds, bias_correction=corrected)
    if not corrected:
        return Lamb(groups, **options, min_coeff=1.0, max_coeff=1.0, bias_correction=False)
    return torch.optim.AdamW(groups, **options, fused=True)


def take_moments(optimizer, args):
    """Give an optimizer the moments of the run whose weights --model_name_or_path names."""
    folder = max(complete_ones(Path(args.model_name_or_path)), default=None, key=step_of)
    count = sum(len(group["params"]) for group in optimizer.param_groups)
    why = ""
    if folder is None:
        why = (
            f"{args.model_name_or_path} holds no checkpoint of phase 1; give phase 1's "
            "--output_dir as --model_name_or_path"
        )
    elif not (folder / TRAINING).exists():
        why = f"{folder} is of DeepSpeed's engine, which cannot hand them on"
    elif args.zero_stage:
        why = "DeepSpeed's engine divides them from stage 1 on, and takes none"
    if folder is None or why:
        if args.local_rank == 0:
            print(f"phase 2 starts with new moments: {why}")
        return
    state = read_tensors(folder / TRAINING)["state"]
    if len(state) != count:
        raise UserError(
            f"{folder}: its optimizer has {len(state)} weights, but this model {count}; give "
            "phase 1's --output_dir as --model_name_or_path"
        )
    kept = {key: {name: one[name] for name in MOMENTS} for key, one in state.items()}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": kept})
    if args.local_rank == 0:
        print(f"phase 2 keeps the optimizer's moments of {folder}")


def make_scheduler(optimizer, settings, warmup_steps, total_steps):
    """The learning rate's scheduler; the configuration's total replaces that of the run."""
    given = {key.rpartition(".")[2]: settings[key] for key in settings if "scheduler" in key}
    total = given["total_num_steps"] or total_steps
    warmup = given["warmup_num_steps"]
    if warmup is None:
        share = given["warmup_proportion"]
        warmup = warmup_steps if share is None else round(share * total)
    factor = {
        "WarmupLR": lambda: constant(warmup, total, given["warmup_type"]),
        "WarmupDecayLR": lambda: linear(warmup, total, given["warmup_type"]),
        "polynomial": lambda: polynomial(warmup, total, given["power"]),
        "warmup_linear_decay_exp": lambda: warmup_linear_decay_exp(
            warmup, total, given["decay_rate"], given["decay_step"]
        ),
    }[given["type"]]()
    return scheduler_of(optimizer, factor, given["warmup_min_lr"])


@torch.no_grad()
def evaluate(model, data, world):
    """The losses and accuracies of both objectives, the same on every rank.

    Over some rows of the training text, with pairs and masks that no epoch of training draws.
    """
    if not data.total_steps:
        return {}
    model = getattr(model, "module", model)  # an engine's passes are of training
    rows = data.batches.rows.order(0)[:EVALUATED]
    mine = rows[world.rank :: world.size]
    model.eval()
    sums = torch.zeros(3, 2, dtype=torch.float64)
    for at in range(0, math.ceil(len(rows) / world.size), data.eval_batch_size):
        part = mine[at : at + data.eval_batch_size]
        # All ranks make equally many passes, as each may gather weights that are sharded.
        output = model(**data.batches.collate(0, part if len(part) else rows[:1]))
        sums += bool(len(part)) * torch.stack(
            [output.loss.double() * output.counts, output.right, output.counts]
        )
    model.train()
    if world.size > 1:
        dist.all_reduce(sums)
    (mlm_loss, nsp_loss), (mlm_acc, nsp_acc) = (sums[:2] / sums[2]).tolist()
    return {"mlm_loss": mlm_loss, "mlm_acc": mlm_acc, "nsp_loss": nsp_loss, "nsp_acc": nsp_acc}
