"""Checkpoints: all that a run needs to go on, bit for bit, as if it had never been cut.

    checkpoint-<step>/
      config.json model.safetensors tokenizer*    the model: works as --model_name_or_path
      training.pt                                 optimizer and scheduler
      shards/                                     each rank's part of a sharded optimizer's state
      rank<R>.pt                                  each rank's random states, and its steps so far
      complete                                    written last: what run this is of, and how far

Rank 0 writes what all ranks share. On machines that do not share --output_dir each rank's own file
stays on its machine, and rank 0 sends the rest when the run is resumed.
"""

import json
import os
import shutil
import socket
import time
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from pickle import UnpicklingError

from common.errors import RunError, UserError
from common.files import disk_full, flush, save_model, whole, write_whole
from common.identity import differences, identity
from common.random_states import random_states, restore
from common.sharded_state import (
    is_sharded,
    load_state,
    save_state,
    set_whole_weights,
    whole_weights,
)
from common.workers.rendezvous import exchange

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model
from torch.nn.parallel import DistributedDataParallel

COMPLETE = "complete"
TRAINING = "training.pt"
SHARDS = "shards"  # of the optimizer, where each rank has a part of it
SORTING_PASSES = 4  # after which DistributedDataParallel no longer changes its buckets


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
        self.wrapped = model
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
        folder = self.folder / f"checkpoint-{progress.step}"
        try:
            if not self.kept:
                self.remove_others()  # those of an earlier run, which this one replaces
                self.barrier()
            folder.mkdir(exist_ok=True)
            weights = whole_weights(self.wrapped)
            if self.world.rank == 0:
                save_model(self.model, self.data.tokenizer, folder, weights)
                training = self.optimizer.state_dict()
                write_tensors(
                    {**training, "state": {}} if self.sharded else training, folder / TRAINING
                )
            if self.sharded:
                save_state(self.optimizer, folder / SHARDS)
            mine = {"random_states": random_states(self.world.device), "lines": lines}
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
        except OSError as error:
            if disk_full(error, self.folder):
                raise
            raise RunError(
                f"{folder}: {error.strerror}, so this checkpoint was not saved; check that folder, "
                "or choose --save_strategy no"
            ) from None

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
        chosen = self.agreed(self.choose() if self.world.rank == 0 else None)
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
        steps = map(step_of, complete_ones(self.folder))
        self.kept = sorted(step for step in steps if step <= self.progress.step)
        return mine["lines"]

    def load_parts(self, folder, world_size):
        """Load what all ranks share into the model and the optimizer; returns this rank's part."""
        here = [(folder / COMPLETE).exists()] * self.world.size
        if self.world.size > 1:
            dist.all_gather_object(here, here[0])
        if self.sharded and not all(here):
            raise UserError(
                f"{folder}: not all workers can read it, and each needs parts of others; give "
                "sharded runs an --output_dir on a disk that all workers share"
            )
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

    def choose(self):
        """The checkpoint to go on from, as its `complete` describes it, or None; rank 0 asks."""
        newest = max(complete_ones(self.folder), default=None, key=step_of)
        if not self.resume and newest and not finished(self.folder):
            print(
                f"{newest} is a checkpoint of a run that did not finish; this run starts afresh "
                "and replaces it at its own first checkpoint: stop it and add --resume to go on"
            )
        if not self.resume:
            return None
        folder = newest if self.resume == "auto" else Path(self.resume)
        if not folder:
            print(f"--resume: {self.folder} holds no complete checkpoint, so the run starts afresh")
            return None
        try:
            facts = json.loads((folder / COMPLETE).read_text())
        except (OSError, ValueError):
            raise UserError(
                f"--resume {folder}: is not a complete checkpoint, as it has no readable file "
                f"`{COMPLETE}`; give a folder named checkpoint-<step>, or auto for the newest one"
            ) from None
        problems = differences(facts["identity"], self.identity, self.args.other_world_size)
        if problems:
            raise UserError(f"{folder} is of another run:" + "".join(f"\n- {p}" for p in problems))
        print(f"resuming from {folder}")
        return {**facts, "folder": str(folder)}

    def agreed(self, chosen):
        """What rank 0 has chosen."""
        if self.world.size == 1 or not self.resume:
            return chosen
        deadline = time.monotonic() + self.world.timeout
        me = {"rank": self.world.rank, "host": socket.gethostname(), "pid": os.getpid()}
        me |= {"facts": {}, "chosen": chosen}
        store, heartbeat = self.world.store, self.world.heartbeat
        return exchange(store, heartbeat, "resume", me, self.world.size, deadline)[0]["chosen"]

    def batches(self, data, epoch):
        """An epoch's batches, without those that the run has gone through before it was resumed.

        A new iterator draws from the random states. So after a checkpoint from the middle of an
        epoch they are restored when there is one, and after one from between epochs, before.
        """
        states, self.random_states = self.random_states, None
        done = self.progress.position if epoch == self.progress.epoch + 1 else 0
        if states and isinstance(self.wrapped, DistributedDataParallel):
            self.sort_buckets(data, epoch)
        if states and not done:
            restore(states, self.world.device)
        batches = iter(data.batches.epoch(epoch))
        next(islice(batches, done, done), None)
        if states and done:
            restore(states, self.world.device)
        return batches

    def sort_buckets(self, data, epoch):
        """Go through as many backward passes as DistributedDataParallel needs to sort its buckets.

        The run that was cut had done so, and with three workers or more the order of a sum depends
        on where in its bucket an element is.
        """
        passes = self.progress.step * self.args.gradient_accumulation_steps
        batch, _ = next(iter(data.batches.epoch(epoch)))[0]
        for _ in range(min(passes, SORTING_PASSES)):
            self.wrapped(**batch).loss.backward()
        self.wrapped.zero_grad()


def complete_ones(folder):
    """The folders of the complete checkpoints in a folder."""
    return [file.parent for file in folder.glob(f"checkpoint-*/{COMPLETE}") if step_of(file.parent)]


def step_of(checkpoint):
    """The step that a checkpoint was saved after, from its folder's name; 0 for another name."""
    step = checkpoint.name.removeprefix("checkpoint-")
    return int(step) if step.isdigit() else 0


def finished(folder):
    """Whether the run in a folder has succeeded."""
    try:
        return json.loads((folder / "run.json").read_text())["end"] is not None
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_tensors(values, path):
    """Write what `read_tensors` reads, whole or not at all."""
    with whole(path) as part, part.open("wb") as file:
        torch.save(values, file)
        file.flush()
        os.fsync(file.fileno())


def read_tensors(path):
    """Read tensors and plain values; nothing in the file is executed."""
    return torch.load(path, map_location="cpu", weights_only=True)
