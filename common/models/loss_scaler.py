"""Loss scaling for float16, as DeepSpeed's configuration describes it."""

from common.errors import RunError

import torch

NEVER = 2**31 - 1  # steps


class LossScaler(torch.amp.GradScaler):
    """torch's GradScaler; of several overflows in a row only the last lowers the scale.

    It lowers by half at the overflow number `hysteresis` and at each after it, and doubles after
    `loss_scale_window` updates without one. A `loss_scale` that is not 0 stays. `skipped` counts
    the updates that were left out because a gradient was not finite.
    """

    def __init__(self, device, settings):
        self.fixed = settings["fp16.loss_scale"] > 0
        self.hysteresis = settings["fp16.hysteresis"]
        self.lowest = settings["fp16.min_loss_scale"]
        self.left = self.hysteresis
        self.skipped = 0
        super().__init__(
            device,
            init_scale=settings["fp16.loss_scale"] or 2.0 ** settings["fp16.initial_scale_power"],
            growth_interval=NEVER if self.fixed else settings["fp16.loss_scale_window"],
            enabled=settings["fp16.enabled"],
        )

    def update(self, new_scale=None):
        """Adapt the scale after a step; returns whether the weights were updated.

        Raises RunError where even the lowest scale overflows.
        """
        before = self.get_scale()
        super().update(new_scale)
        after = self.get_scale()
        if after > before:
            self.left = self.hysteresis
        if not self.is_enabled() or after >= before:
            return True
        self.skipped += 1
        self.left -= 1
        if self.fixed or self.left > 0:
            super().update(before)
        elif after < self.lowest:
            raise RunError(
                f"fp16: a gradient is not finite, and the loss scale {before:g} is the lowest "
                "allowed (fp16.min_loss_scale); lower the learning rate, or train with bf16"
            )
        return False

    def state_dict(self):
        """What a checkpoint holds of it."""
        return {**super().state_dict(), "left": self.left, "skipped": self.skipped}

    def load_state_dict(self, state_dict):
        """Go on from a checkpoint's."""
        state = dict(state_dict)
        self.left, self.skipped = state.pop("left"), state.pop("skipped")
        if self.is_enabled():
            super().load_state_dict(state)
