"""How long a worker takes for n examples, a + b n seconds, and the parts that suit such workers."""

from statistics import median

KEPT = 40  # newest steps: older ones may be of other times
LEAST = 0.05  # b, in units of the mean seconds per example: noise must not make a worker free


class Speed:
    """The measured steps of one worker: the examples of each, and its seconds.

    A step costs a fixed time `a`, whatever its size, and `b` for each example. As long as all steps
    have had one size, `a` is taken for 0.
    """

    def __init__(self):
        self.steps: list[tuple[int, float]] = []

    def add(self, examples: int, seconds: float) -> None:
        """Add a step."""
        self.steps = [*self.steps, (examples, seconds)][-KEPT:]

    def line(self) -> tuple[float, float]:
        """(a, b), in seconds, neither below 0; (0, 0) before the first step.

        The least squares through the median of each size, which weighs as much as it has steps.
        """
        sizes: dict[int, list[float]] = {}
        for examples, seconds in self.steps:
            sizes.setdefault(examples, []).append(seconds)
        if not sizes:
            return 0.0, 0.0
        points = [(n, median(seconds), len(seconds)) for n, seconds in sizes.items()]
        x, y = (sum(point[i] * point[2] for point in points) / len(self.steps) for i in (0, 1))
        across = sum(weight * (n - x) * (seconds - y) for n, seconds, weight in points)
        spread = sum(weight * (n - x) ** 2 for n, _, weight in points)
        b = min(y / x, max(LEAST * y / x, across / spread)) if spread else y / x
        return y - b * x, b


def ideal_parts(total: int, lines: list[tuple[float, float]]) -> list[float]:
    """Parts of `total`, not yet whole, with which workers of these (a, b) end at the same time.

    A worker whose fixed time alone is longer than that gets next to nothing.
    """
    quick = list(lines)
    while True:
        end = (total + sum(a / b for a, b in quick)) / sum(1 / b for _, b in quick)
        if all(a < end for a, _ in quick):
            return [max((end - a) / b, 1e-3) for a, b in lines]
        quick = [(a, b) for a, b in quick if a < end]
