"""What a run prints and writes: a line per step, run.json, the metrics, the model."""

import json
import statistics
import sys
from pathlib import Path

from common.checkpoint import Checkpoints, Progress
from common.files import save_model, write_whole
from common.layers import seconds_of_stage
from common.models.stage import Stage
from common.record.all_reduce import time_all_reduce
from common.record.clock import Clock
from common.record.equal_weights import EqualWeights
from common.record.facts import describe, now
from common.record.finite import FiniteNumbers
from common.record.first_losses import FirstLosses
from common.record.folder import clear, hold
from common.record.live import start_live_view
from common.record.memory import Memory
from common.record.metrics import Metrics
from common.record.notice import Notice
from common.record.schedule import Schedule
from common.record.slow import slow_down
from common.record.timeline import Timeline
from common.record.trace import start_trace
from common.record.traffic import Traffic
from common.sharded_state import whole_weights
from common.units import after_epoch

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm


class Record:
    """The record of one rank's run, and rank 0's progress bar."""

    def __init__(self, args, world, model, data, optimizer):
        self.world = world
        self.data = data
        self.folder = Path(args.output_dir)
        self.held = hold(self.folder, world.rank)
        self.checkpoints = Checkpoints(args, world, model, data, optimizer)
        lines = self.checkpoints.load()
        done = self.checkpoints.progress
        self.schedule = Schedule(data.total_steps, done.step, done.epoch, done.position)
        self.metrics = Metrics(done.metrics, self.folder, world.rank)
        self.strategy = args.save_strategy
        slow_down(args, world, model)
        self.timeline = None
        if isinstance(model, Stage):
            seconds = seconds_of_stage(args.stage_ms)
            self.timeline = Timeline(self.folder, model, self.schedule, seconds)
        self.clock = Clock(world, model, optimizer)
        self.memory = Memory(world, model, optimizer)
        if not args.allow_nan:
            FiniteNumbers(world, model, optimizer, self.schedule)
        self.equal_weights = EqualWeights(args, world, model)
        self.first_losses = FirstLosses(world)
        self.seconds = [json.loads(line)["seconds"]["total"] for line in lines.splitlines()]
        clear(self.folder, world)
        self.steps_file = (self.folder / f"steps.rank{world.rank}.jsonl").open("w+")
        self.steps_file.write(lines)
        self.bar = tqdm(
            total=data.total_steps,
            initial=self.schedule.step,
            unit="step",
            leave=False,
            disable=world.rank > 0 or not data.total_steps,
            mininterval=0.1 if sys.stderr.isatty() else 10,
        )
        self.facts = describe(args, world, model, data.splits)
        self.facts |= {"resumed": done.resumed, "start": done.start or self.facts["start"]}
        if args.time_all_reduce:
            seconds = time_all_reduce(world, self.facts["gradient_bytes"])
            self.facts["all_reduce_seconds"] = seconds
        self.trace = start_trace(args, self.folder, world)
        self.live = start_live_view(args, self.folder, world, self.schedule.step)
        self.traffic = Traffic(args, world, every=True) if args.count_traffic else None
        if self.traffic and isinstance(model, DistributedDataParallel):
            model.register_comm_hook(None, allreduce_hook)  # does the same, but through Python
        self.notice = Notice(world)
        self.metrics.write()
        self.write()

    def epochs(self):
        """Yield the epochs of a run: from 1, or only 0 where nothing is trained."""
        return self.schedule.epochs()

    def steps(self, data, epoch):
        """Yield each step's [(batch, weight), ...], and write its line when the caller is done."""
        steps = self.timed_steps(data, epoch)
        return self.traffic.steps(steps, epoch) if self.traffic else steps

    def timed_steps(self, data, epoch):
        """The same, without a count of their traffic."""
        if self.schedule.finished:
            return
        steps = self.checkpoints.batches(data, epoch)
        self.clock.start()
        for batches in steps:
            self.clock.lap("data")
            yield batches
            self.clock.end()
            self.end_step(epoch, batches)
            if self.schedule.finished:
                return
            self.clock.start()

    def end_step(self, epoch, batches):
        """Write the line of the step that has just ended."""
        self.schedule.end_step()
        loss = self.loss(batches)
        read = [batch for batch, weight in batches if torch.as_tensor(weight).any()]
        if loss is None:
            read = []
        masks = [batch["attention_mask"] for batch in read if "attention_mask" in batch]
        total = sum(self.clock.seconds.values())
        self.seconds.append(total)
        line = {
            "step": self.schedule.step,
            "epoch": epoch,
            "loss": loss or 0.0,
            "examples": sum(len(next(iter(batch.values()))) for batch in read),
            "tokens": int(sum(mask.sum() for mask in masks)),
            "seconds": {"total": total, **self.clock.seconds},
            **self.details(batches),
        }
        print(json.dumps(line), file=self.steps_file, flush=True)
        if self.trace:
            self.trace.step()
        if self.live:
            self.live.step(line)
        self.bar.update()
        if loss is not None:
            whose = "" if self.world.size == 1 else "rank 0's "
            self.bar.set_postfix_str(f"{whose}loss {loss:.4f}", refresh=False)
        self.first_losses.add(self.schedule.step, line["loss"], line["examples"])
        self.show_losses()
        if apart := self.equal_weights.after(self.schedule.step):
            self.say(apart)
        if parts := self.data.batches.end_step(self.clock.seconds, line["examples"]):
            self.say(parts)
        step, last = self.schedule.step, self.notice.is_last(self.schedule.step)
        if self.checkpoints.due(step) or (last and self.strategy != "no"):
            self.save(epoch - 1, self.schedule.position)
        if last:
            self.bar.close()
            self.notice.end(step, saved=self.strategy != "no")

    def details(self, batches):
        """What the line of a step holds besides, for a task that adds to it."""
        del batches
        return {}

    def save(self, epoch, position):
        """Save a checkpoint: after `epoch` epochs, and `position` steps of the next."""
        done = {"step": self.schedule.step, "epoch": epoch, "position": position}
        done |= {"metrics": list(self.metrics), **{k: self.facts[k] for k in ("resumed", "start")}}
        self.steps_file.seek(0)
        self.checkpoints.save(Progress(**done), self.steps_file.read())

    def show_losses(self, at_end=False):
        """Print the losses of the first minibatches that are known by now."""
        for step, loss in self.first_losses.known(at_end):
            self.say(f"minibatch {step}: loss {loss}")

    def loss(self, batches):
        """The mean loss of the step that has just ended, over this rank's examples.

        Of workers that divide a model the last alone counts it: for others None is returned, and
        their lines have no examples.
        """
        if (self.world.rank + 1) % self.world.parts:
            return None
        losses = [output.loss for output in self.clock.outputs if output.loss is not None]
        if self.clock.outputs and not losses:
            return None
        weights = [weight for _, weight in batches]
        if len(losses) != len(weights):  # the loop divides its batches otherwise
            weights = [1 / max(1, len(losses))] * len(losses)
        pairs = zip(losses, weights, strict=True)
        return sum((loss * weight).sum().item() for loss, weight in pairs)

    def end_epoch(self, epoch, scores):
        """Take an epoch's metrics; with --save_strategy epoch, save a checkpoint.

        An epoch that --max_steps cut short counts as the part of it that was trained.
        """
        self.show_losses()
        if scores:
            self.add_metrics(epoch, scores)
        if self.strategy == "epoch":
            self.save(epoch, 0)

    def add_metrics(self, epoch, scores):
        """Print the metrics after an epoch, and write them."""
        if epoch and self.schedule.step < epoch * len(self.data.batches):
            epoch = round(self.schedule.step / len(self.data.batches), 4)
        self.metrics.add(epoch, scores)
        if self.live:
            self.live.scores(scores, self.schedule.step)
        text = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        self.say(f"{after_epoch(epoch)}: {text}")

    def finish(self, model):
        """Print the mean time per iteration; rank 0 saves the model and completes run.json."""
        self.show_losses(at_end=True)
        self.bar.close()
        if self.trace:
            self.trace.stop()
        if self.live:
            self.live.close()
        timed = self.seconds[1:]  # the first iteration pays for memory, caches and connections
        if timed:
            mean = statistics.mean(timed)
            self.say(
                f"mean time per iteration: {mean:.4f} s "
                f"({len(timed)} iterations; the first is discarded)"
            )
            self.facts["iterations_timed"] = len(timed)
            self.facts["iteration_seconds"] = {"mean": mean, "median": statistics.median(timed)}
        weights = whole_weights(model)
        model = getattr(model, "module", model)
        if self.world.rank == 0 and self.schedule.total_steps:
            save_model(model, self.data.tokenizer, self.folder, weights)
        if self.checkpoints.seconds:
            self.facts["checkpoint_seconds"] = self.checkpoints.seconds
        if splits := getattr(self.data.batches, "splits", None):
            self.facts["splits"] = splits
        if self.equal_weights.found:
            self.facts["weights_apart"] = self.equal_weights.found
        self.memory.write(self.folder)
        if self.traffic:
            self.traffic.finish()
        if self.timeline:
            self.timeline.close()
        self.facts["end"] = now()
        self.write()
        self.held.close()

    def write(self):
        """Rank 0 writes run.json; its `end` is null until the run has succeeded."""
        if self.world.rank == 0:
            facts = {**self.facts, "metrics": self.metrics}
            write_whole(self.folder / "run.json", json.dumps(facts, indent=1) + "\n")

    def say(self, text):
        """Print on rank 0, above the progress bar."""
        if self.world.rank == 0:
            self.bar.write(text)
            sys.stdout.flush()
