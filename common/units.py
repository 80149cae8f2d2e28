"""Units that people write, as numbers, and the reverse."""

from common.errors import UserError

# Bytes of each weight in float32, under AdamW, which keeps two numbers for it.
PER_WEIGHT = {"weights": 4, "gradients": 4, "optimizer_state": 8}


def after_epoch(epoch):
    """When something was measured: after epoch 2; after 1.03 epochs; without training (0)."""
    if not epoch:
        return "without training"
    return f"after epoch {epoch}" if isinstance(epoch, int) else f"after {epoch} epochs"


def bits_per_second(rate):
    """1gbit -> 1_000_000_000; raises UserError for what tc would not take."""
    units = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
    number, unit = rate[:-4], rate[-4:].lower()
    try:
        bits = float(number) * units[unit]
        assert 10**5 <= bits <= 10**15
    except (ValueError, KeyError, AssertionError):
        raise UserError(f"rate {rate!r}: write it as 100mbit or 1gbit (at least 100kbit)") from None
    return int(bits)
