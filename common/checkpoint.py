"""Checkpoints: all that a run needs to go on, bit for bit, as if it had never been cut.

    checkpoint-<step>/
      config.json model.safetensors tokenizer*    the model: works as --model_name_or_path
      training.pt                                 optimizer and scheduler
      shards/                                     each rank's part of a sharded optimizer's state;
                                                  all that DeepSpeed's engine saves
      rank<R>.pt                                  each rank's random states, and its steps so far
      complete                                    written last: what run this is of, and how far

Rank 0 writes what all ranks share. On machines that do not share --output_dir each rank's own file
stays on its machine, and rank 0 sends the rest when the run is resumed.
"""

import json
import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from common.checkpoint_files import (
    COMPLETE,
    SHARDS,
    TRAINING,
    complete_ones,
    read_tensors,
    step_of,
    write_tensors,
)
from common.engine import is_engine
from common.errors import RunError, UserError
from common.files import disk_full, flush, save_model, write_whole
from common.identity import identity
from common.random_states import random_states
from common.resume import batches_after, choose
from common.sharded_state import (
    is_sharded,
    load_state,
    save_state,
    set_whole_weights,
    whole_weights,
)
from common.workers.gathering import gathered

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model


@dataclass
class Progress:
    """How far a run is: `epoch` epochs are over, and `position` steps of the next are done.

    `resumed` lists the steps from which the run has been resumed; `start` is when it began.
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    metrics: list[dict] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    start: str = ""


class Checkpoints:
    """The checkpoints of a run, as one rank writes and reads them."""

    def __init__(self, args, world, model: torch.nn.Module, data, optimizer):
        self.args = args
        self.world = world
        self.wrapped: Any = model
        self.model = getattr(model, "module", model)
        self.data = data
        self.optimizer = optimizer
        self.sharded = is_sharded(optimizer)
        wishes = [member.get("resume") for member in world.members]  # restarted ones have one
        self.resume = next(filter(None, wishes), "")
        used = self.resume or args.save_strategy != "no"
        self.identity = identity(args, self.model, data) if used else {}
        self.folder = Path(args.output_dir)
        self.kept = []  # steps, oldest first
        self.seconds = []  # that each save took
        self.progress = Progress()
        self.random_states = None  # to restore when the data is gone through again

    def due(self, step):
        """Whether --save_steps asks for a checkpoint after this step."""
        return self.args.save_steps > 0 and step % self.args.save_steps == 0

    def save(self, progress, lines):
        """Write a checkpoint; `lines` are those of this rank's steps. Every rank calls it at once.

        Raises RunError, or the OSError of a full disk, where it cannot be written.
        """
        if progress.step in self.kept or not progress.step:
            return
        folder, began = self.folder / f"checkpoint-{progress.step}", time.perf_counter()
        try:
            if not self.kept:
                self.remove_others()  # those of an earlier run, which this one replaces
                self.barrier()
            folder.mkdir(exist_ok=True)
            weights = whole_weights(self.wrapped)
            if self.world.rank == 0:
                save_model(self.model, self.data.tokenizer, folder, weights)
            self.save_training(folder)
            mine = {"random_states": random_states(self.world.device), "lines": lines}
            mine["split"] = self.data.batches.state()
            write_tensors(mine, folder / f"rank{self.world.rank}.pt")
            flush(folder)
            self.barrier()  # from here on every rank's part is on its disk
            if self.world.rank == 0:
                facts = {"identity": self.identity, "progress": asdict(progress)}
                write_whole(folder / COMPLETE, json.dumps(facts, indent=1) + "\n")
                flush(folder)
            self.barrier()
            self.kept = [*self.kept, progress.step][-self.args.save_total_limit :]
            self.remove_others()
            self.seconds.append(time.perf_counter() - began)
        except OSError as error:
            if disk_full(error, self.folder):
                raise
            raise RunError(
                f"{folder}: {error.strerror}, so this checkpoint was not saved; check that folder, "
                "or choose --save_strategy no"
            ) from None

    def save_training(self, folder):
        """Write optimizer and scheduler: rank 0 what all ranks share, each rank its own part."""
        if is_engine(self.wrapped):
            self.wrapped.save_checkpoint(folder, tag=SHARDS)
            return
        if self.world.rank == 0:
            training = self.optimizer.state_dict()
            write_tensors(
                {**training, "state": {}} if self.sharded else training, folder / TRAINING
            )
        if self.sharded:
            save_state(self.optimizer, folder / SHARDS)

    def remove_others(self):
        """Remove all checkpoints of this folder but those that are kept."""
        for old in self.folder.glob("checkpoint-*"):
            if step_of(old) not in (0, *self.kept):
                (old / COMPLETE).unlink(missing_ok=True)  # first: what is half there is not trusted
                shutil.rmtree(old, ignore_errors=True)  # other ranks may remove it, too

    def barrier(self):
        """Wait for all ranks."""
        if self.world.size > 1:
            dist.barrier()

    def load(self):
        """Go on from the checkpoint that --resume names: returns this rank's lines so far.

        Without one, returns "". Raises UserError for a checkpoint that is damaged, or of a run with
        other arguments, data, or number of workers: it names what differs.
        """
        chosen = None
        if self.world.rank == 0:
            chosen = choose(self.args, self.resume, self.identity)
        if self.resume:
            chosen = gathered(self.world, "resume", chosen)[0]
        if not chosen:
            return ""
        folder = Path(chosen["folder"])
        if self.resume == "auto":
            folder = self.folder / folder.name
        self.progress = Progress(**chosen["progress"])
        self.progress.resumed.append(self.progress.step)
        try:
            mine = self.load_parts(folder, chosen["identity"]["--world_size"])
        except (OSError, RuntimeError, ValueError, SafetensorError, UnpicklingError) as error:
            if isinstance(error, (UserError, dist.DistError)):
                raise
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"{folder}: this checkpoint cannot be read ({reason}); delete it, and --resume "
                "takes the one before, or starts afresh"
            ) from None
        self.random_states = mine["random_states"]
        self.data.batches.restore(mine.get("split", {}))
        steps = map(step_of, complete_ones(self.folder))
        self.kept = sorted(step for step in steps if step <= self.progress.step)
        return mine["lines"]

    def load_parts(self, folder, world_size):
        """Load what all ranks share into the model and the optimizer; returns this rank's part."""
        here = [(folder / COMPLETE).exists()] * self.world.size
        if self.world.size > 1:
            dist.all_gather_object(here, here[0])
        engine = is_engine(self.wrapped)
        if (self.sharded or engine) and not all(here):
            raise UserError(
                f"{folder}: not all workers can read it, and each needs parts of others; give "
                "sharded runs an --output_dir on a disk that all workers share"
            )
        if engine:
            self.load_engine(folder, world_size)
            return read_tensors(folder / f"rank{self.world.rank}.pt")
        if self.sharded:
            set_whole_weights(self.wrapped, load_file(folder / "model.safetensors"))
            load_state(self.optimizer, folder / SHARDS)
            own = self.optimizer.state_dict()
            training = read_tensors(folder / TRAINING)
            groups = zip(training["param_groups"], own["param_groups"], strict=True)
            training["param_groups"] = [rank0 | {"params": o["params"]} for rank0, o in groups]
            training["state"] = own["state"]
        elif self.world.rank == 0 or all(here):
            load_model(self.model, folder / "model.safetensors")
            training = read_tensors(folder / TRAINING)
        if not all(here):
            shared = [(self.model.state_dict(), training) if self.world.rank == 0 else ({}, {})]
            dist.broadcast_object_list(shared)
            ((weights, training),) = shared
            self.model.load_state_dict(weights)
        self.optimizer.load_state_dict(training)
        if world_size != self.world.size:
            return {"random_states": None, "lines": ""}  # they belong to another share of the data
        return read_tensors(folder / f"rank{self.world.rank}.pt")

    def load_engine(self, folder, world_size):
        """Load DeepSpeed's part of a checkpoint, which holds weights, optimizer and scheduler."""
        if world_size != self.world.size:
            raise UserError(
                f"{folder}: DeepSpeed's engine of {world_size} workers has written it, and only as "
                "many can read it; resume with as many"
            )
        self.wrapped.load_checkpoint(folder, tag=SHARDS)

    def batches(self, data, epoch):
        """An epoch's batches, without those that the run has gone through before it was resumed."""
        return batches_after(self, data, epoch)
