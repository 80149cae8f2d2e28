"""The record of a pre-training run: the losses of both objectives, the optimizer, the speed."""

import json
import time
from typing import Any

from common.models.lamb import Lamb
from common.record.record import Record

import torch
import torch.distributed as dist

SIDE = 1024  # of the matrices whose product the peak is measured by
PEAK_SECONDS = 0.2


class PretrainingRecord(Record):
    """A Record whose lines also have what pre-training is watched by."""

    def __init__(self, args, world, model, data, optimizer, scaler):
        self.optimizer = optimizer
        self.scaler = scaler
        self.every = json.loads(args.settings)["steps_per_print"]
        self.rate = 0.0  # of the last update
        self.skipped = scaler.skipped
        inner: Any = getattr(model, "module", model)
        self.config = inner.config  # an engine has its own
        self.work = []  # tokens and floating-point operations of this rank, by step
        optimizer.register_step_pre_hook(self.note_rate)
        super().__init__(args, world, model, data, optimizer)
        self.skipped = scaler.skipped

    def note_rate(self, *_):
        """The optimizer's step begins: the scheduler has not changed its rate yet."""
        self.rate = self.optimizer.param_groups[0]["lr"]

    def details(self, batches):
        """What a step's line holds beside what every task's has; losses are this rank's means."""
        outputs = self.clock.outputs
        counts = torch.stack([output.counts for output in outputs])
        losses = torch.stack([output.loss.detach() for output in outputs]) * counts
        total = counts.sum(0).clamp(min=1)
        mlm_loss, nsp_loss = (losses.sum(0) / total).tolist()
        right = torch.stack([output.right for output in outputs]).sum(0)
        self.work.append(work_of(self.config, [batch for batch, _ in batches]))
        facts = {"mlm_loss": mlm_loss, "nsp_loss": nsp_loss, "masked": int(total[0])}
        facts |= {"mlm_right": int(right[0]), "nsp_right": int(right[1])}
        facts["learning_rate"] = self.rate
        if self.scaler.is_enabled():
            skipped = self.scaler.skipped > self.skipped
            facts |= {"loss_scale": self.scaler.get_scale(), "skipped": skipped}
            self.skipped = self.scaler.skipped
            if skipped:
                self.say(
                    f"step {self.schedule.step}: skipped, as a gradient overflowed; the loss scale "
                    f"is now {facts['loss_scale']:g}"
                )
        if isinstance(self.optimizer, Lamb):
            facts["trust_ratios"] = self.optimizer.trust_ratios()
        if self.every and self.schedule.step % self.every == 0:
            self.say(
                f"step {self.schedule.step}: masked tokens {mlm_loss:.4f}, pairs {nsp_loss:.4f}, "
                f"learning rate {self.rate:.3g}"
            )
        return facts

    def finish(self, model):
        """Add the speed: tokens per second of all ranks, and the share of what they could do."""
        seconds, work = self.seconds[-len(self.work) :][1:], self.work[1:]
        sums = torch.tensor([0.0, 0.0, peak(self.world.device)], dtype=torch.float64)
        if work:
            tokens, operations = map(sum, zip(*work, strict=True))
            sums[:2] = torch.tensor([tokens, operations]) / sum(seconds)
        if self.world.size > 1:
            dist.all_reduce(sums)
        rate, done, most = sums.tolist()
        self.facts |= {"tokens_per_second": rate, "operations_per_second": done}
        self.facts |= {"peak_operations_per_second": most, "skipped_steps": self.scaler.skipped}
        super().finish(model)
        if work:
            self.say(
                f"{rate:,.0f} tokens per second; {done / 1e9:.1f} GFLOP/s in matrix products, "
                f"{done / most:.0%} of the {most / 1e9:.1f} that all workers reach at once"
            )
        if self.scaler.skipped:
            self.say(f"{self.scaler.skipped} updates were skipped: their gradients overflowed")


def work_of(config, batches):
    """(tokens, floating-point operations) of a step on this rank; padding counts as nothing.

    Operations of matrix products, forward and twice that backward; of the last layer's products
    after attention, and of the vocabulary's, only those of tokens that are read.
    """
    wide, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    tokens = operations = 0
    for batch in batches:
        lengths = batch["attention_mask"].sum(1)
        own, pairs = int(lengths.sum()), int(lengths.square().sum())
        masked = int((batch["labels"] >= 0).sum())
        read = masked + len(lengths)
        layer = 2 * own * 4 * wide * wide + 4 * pairs * wide
        operations += layers * layer + 4 * wide * inner * (own * (layers - 1) + read)
        operations += 2 * masked * wide * (wide + config.vocab_size)
        tokens += own
    return tokens, 3 * operations


def peak(device):
    """The floating-point operations per second of a product of large float32 matrices."""
    a, b = torch.rand(2, SIDE, SIDE, device=device)
    count, start = 0, time.perf_counter()
    while time.perf_counter() < start + PEAK_SECONDS:
        (a @ b).sum().item()
        count += 1
    return 2 * SIDE**3 * count / (time.perf_counter() - start)
