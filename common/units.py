"""Units that people write, as numbers."""

from common.errors import UserError


def bits_per_second(rate):
    """1gbit -> 1_000_000_000; raises UserError for what tc would not take."""
    units = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
    number, unit = rate[:-4], rate[-4:].lower()
    try:
        bits = float(number) * units[unit]
        assert bits >= 10**5
    except (ValueError, KeyError, AssertionError):
        raise UserError(f"rate {rate!r}: write it as 100mbit or 1gbit (at least 100kbit)") from None
    return int(bits)
