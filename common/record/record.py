"""What a run prints and leaves behind: a line per step, run.json, the metrics, the model."""

import json
import math
import statistics
import sys
import time
from pathlib import Path

from common.errors import UserError
from common.files import save_model, write_whole
from common.record.clock import PHASES
from common.record.facts import describe, now
from common.record.trace import start_trace

import torch
from tqdm import tqdm


class Record:
    """The record of one rank's run, and rank 0's progress bar.

    `updates` is the number of optimizer steps: --max_steps, or the epochs' worth.
    """

    def __init__(self, args, world, model, splits, batches):
        per_epoch = len(batches)
        self.updates = math.ceil(args.num_train_epochs * per_epoch)
        if args.max_steps > 0 and per_epoch:
            self.updates = args.max_steps
        self.args, self.world, self.step = args, world, 0
        self.folder = Path(args.output_dir)
        self.seconds, self.metrics = [], []
        self.clear()
        self.steps_file = (self.folder / f"steps.rank{world.rank}.jsonl").open("w")
        self.bar = tqdm(
            total=self.updates,
            unit="step",
            leave=False,
            disable=world.rank > 0 or not self.updates,
            mininterval=0.1 if sys.stderr.isatty() else 10,
        )
        self.facts = describe(args, world, model, splits)
        self.trace = start_trace(args, self.folder, world)
        self.write()

    def clear(self):
        """Remove what an earlier run left here, so that no rank's file is mistaken for this one's.

        Every rank removes its own; rank 0 also those of ranks that this run does not have.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / f"trace.rank{self.world.rank}.json").unlink(missing_ok=True)
            if self.world.rank == 0:
                for old in self.folder.glob("*.rank*.json*"):
                    rank = old.name.split(".")[1].removeprefix("rank")
                    if rank.isdigit() and int(rank) >= self.world.size:
                        old.unlink()
                for name in ("run.json", "eval_results.txt"):
                    (self.folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise UserError(
                f"--output_dir {self.folder}: {error.strerror}; name one to write in"
            ) from None

    def epochs(self):
        """Count epochs from 1 for as long as there are steps to do; only 0 if there are none."""
        epoch = 0
        while self.step < self.updates or epoch == self.updates == 0:
            epoch += bool(self.updates)
            yield epoch
            if not self.updates:
                return

    def steps(self, batches, epoch):
        """Yield a step's batches, and write a line when the caller comes back for the next."""
        if not self.updates:
            return
        start = time.perf_counter()
        for step_batches in batches.epoch(epoch):
            self.laps, self.loss, self.last = dict.fromkeys(PHASES, 0.0), 0.0, start
            self.lap("data")
            yield step_batches
            self.end_step(epoch, step_batches, start)
            if self.step == self.updates:
                return
            start = time.perf_counter()

    def lap(self, phase, loss=None):
        """Count the time since the last lap as `phase`; add `loss` (its share) to the step's.

        On a GPU this waits for it (a CPU-GPU sync point): else its time would fall to a later lap.
        """
        if self.world.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.laps[phase] += now - self.last
        self.last = now
        if loss is not None:
            self.loss += loss.item()

    def end_step(self, epoch, step_batches, start):
        """Write the line of the step that has just ended."""
        self.step += 1
        total = self.last - start
        self.seconds.append(total)
        masks = [batch["attention_mask"] for batch, _ in step_batches]
        line = {
            "step": self.step,
            "epoch": epoch,
            "loss": self.loss,
            "examples": sum(len(mask) for mask in masks),
            "tokens": int(sum(mask.sum() for mask in masks)),
            "seconds": {"total": total, **self.laps},
        }
        print(json.dumps(line), file=self.steps_file, flush=True)
        if self.trace:
            self.trace.step()
        self.bar.update()
        self.bar.set_postfix(loss=f"{self.loss:.4f}", refresh=False)
        if self.step <= 5:
            self.say(f"minibatch {self.step}: loss {self.loss:.6f}")

    def end_epoch(self, epoch, scores):
        """Print the metric after an epoch and write it down."""
        if not scores:
            return
        self.metrics.append({"epoch": epoch, **scores})
        text = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        self.say(f"after epoch {epoch}: {text}" if epoch else f"without training: {text}")
        if self.world.rank == 0:
            lines = [f"{k} = {v}" for metrics in self.metrics for k, v in metrics.items()]
            write_whole(self.folder / "eval_results.txt", "\n".join(lines) + "\n")

    def finish(self, model, tokenizer):
        """Print the mean time per iteration; rank 0 leaves the model and completes run.json."""
        self.bar.close()
        if self.trace:
            self.trace.stop()
        timed = self.seconds[1:]  # the first iteration pays for memory, caches and connections
        if timed:
            mean = statistics.mean(timed)
            self.say(
                f"mean time per iteration: {mean:.4f} s "
                f"({len(timed)} iterations; the first is discarded)"
            )
            self.facts["iterations_timed"] = len(timed)
            self.facts["iteration_seconds"] = {"mean": mean, "median": statistics.median(timed)}
        if self.world.rank == 0 and self.updates:
            save_model(getattr(model, "module", model), tokenizer, self.folder)
        self.facts["end"] = now()
        self.write()

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
