"""How far off is allowed: between what right submissions do and what the nearest wrong one does."""

import json
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

FILE = Path(__file__).with_name("tolerances.json")


@dataclass(frozen=True)
class Allowed:
    """The limit of one measure, and the measurements it comes from."""

    noise: float  # the most that a right submission of the gallery was off
    wrong: float  # the least that a wrong one, which this measure must find, was off

    @property
    def most(self):
        """The geometric mean of the two: equally far, in orders of magnitude, from either."""
        return sqrt(max(self.noise, 1e-9) * self.wrong)

    @property
    def text(self):
        return (
            f"{self.most:.1e} (right submissions: at most {self.noise:.1e}; nearest wrong one: "
            f"{self.wrong:.1e})"
        )


def load(file=FILE):
    """Measure -> Allowed."""
    return {name: Allowed(**facts) for name, facts in json.loads(file.read_text()).items()}
