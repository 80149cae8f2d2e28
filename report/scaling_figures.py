"""Figures of a sweep: time per iteration, speed-up and efficiency, traffic of each node."""

import textwrap
from pathlib import Path
from typing import Any

from common.tasks import BY_KEY
from common.units import bits_per_second
from report.style import COLORS, HATCHES, MARKS, WIDTH, label_logarithmic, label_ticks, pyplot, save


def measured_cells(sweep: dict) -> list[dict]:
    """The cells that did not fail."""
    return [cell for cell in sweep["cells"] if "failure" not in cell]


def waiting(cell: dict, cells: list[dict]) -> float:
    """Seconds of an iteration in which the cores wait for the network, or copy for it.

    DDP also waits within its backward pass: it is what it takes longer than those by hand compute.
    """
    if cell["workers"] == 1 or BY_KEY[cell["task"]].by_hand:
        return cell["seconds"]["sync"]
    same = [
        other["seconds"]["total"] - other["seconds"]["sync"]
        for other in cells
        if BY_KEY[other["task"]].by_hand
        and (other["workers"], other["batch"]) == (cell["workers"], cell["batch"])
    ]
    return max(0.0, cell["seconds"]["total"] - min(same)) if same else float("nan")


def source_of(sweep: dict) -> str:
    """What a sweep's figures come from."""
    size = max((cell["gradient_bytes"] for cell in measured_cells(sweep)), default=0)
    machine = sweep["machine"]
    return (
        f"experiments.scaling: {size / 1e6:.1f} MB of gradients, {machine['processor']}, "
        f"{machine['cores']} cores for all workers, {(machine['git_commit'] or 'no commit')[:12]}"
    )


def figures(sweep: dict, folder: Path) -> list[Path]:
    """Draw the sweep in `folder`, as PNG and SVG; returns the files."""
    cells = measured_cells(sweep)
    drawings = {"time": draw_times, "speedup": draw_speedup, "traffic": draw_traffic}
    return [
        path
        for name, draw in drawings.items()
        for path in save(draw(cells), name, source_of(sweep), folder)
    ]


def model_figure(
    rows: list[dict], curves: dict, title: str, source: str, folder: Path
) -> list[Path]:
    """Draw predicted against measured seconds, and efficiency by workers; returns the files.

    `rows` are cost_model.check's; `curves` has (task, rate) -> [(workers, efficiency)].
    """
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(WIDTH, 3.6), layout="constrained")
    for limit, mark, color in (("network", "o", COLORS[0]), ("cores", "x", COLORS[5])):
        points = [(r["measured"], r["predicted"]) for r in rows if r["limit"] == limit]
        if points:
            left.loglog(*zip(*points, strict=True), mark, color=color, label=f"limit: {limit}")
    ends = [row[name] for row in rows for name in ("measured", "predicted")] or [1]
    left.loglog([min(ends), max(ends)], [min(ends), max(ends)], "k:")
    left.set(xlabel="measured, seconds/iteration", ylabel="predicted, seconds/iteration")
    left.set_title("the cost model against the cells\nit was not fitted to")
    for axis in (left.xaxis, left.yaxis):
        label_logarithmic(axis)
    left.legend()
    for (task, rate), curve in curves.items():
        workers, shares = zip(*curve, strict=True)
        i = sorted({t for t, _ in curves}).index(task)
        j = sorted({r for _, r in curves}, key=bits_per_second).index(rate)
        shares = [100 * share for share in shares]
        style = {"color": COLORS[i % len(COLORS)], "marker": MARKS[j], "markersize": 4}
        right.semilogx(workers, shares, base=2, label=f"{task}, {rate}", **style)
    right.set(xlabel="workers", ylabel="efficiency, %", ylim=(0, 105))
    right.set_title(textwrap.fill(title, 40))
    right.xaxis.set_major_formatter("{x:g}")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return save(figure, "model", source, folder)


def rates_of(cells: list[dict]) -> list[str]:
    """The link rates of the cells with several workers, the slowest first."""
    return sorted({c["rate"] for c in cells if c["workers"] > 1}, key=bits_per_second)


def draw_times(cells: list[dict]) -> Any:
    """Bars of seconds per iteration for each link rate: computing, and waiting for the network.

    The rates have scales of their own, which their titles say: a slow link takes many times longer.
    """
    rates = rates_of(cells)
    if not rates:
        return None
    figure, axes = pyplot().subplots(
        len(rates), 1, figsize=(WIDTH, 2.6 * len(rates)), squeeze=False, layout="constrained"
    )
    for axis, rate in zip(axes[:, 0], rates, strict=True):
        shown = [c for c in cells if c["rate"] == rate and c["workers"] > 1]
        shown.sort(key=lambda c: (c["workers"], -c["batch"], c["task"]))
        names = [f"{c['task']}\n{c['workers']}x{c['batch']}" for c in shown]
        wait = [waiting(c, cells) for c in shown]
        work = [c["seconds"]["total"] - w for c, w in zip(shown, wait, strict=True)]
        places = range(len(shown))
        axis.bar(places, work, 0.7, color=COLORS[0], label="computing")
        axis.bar(places, wait, 0.7, work, color=COLORS[1], hatch=HATCHES[1], label="network")
        label_ticks(axis, places, names)
        title = f"links of {rate}: task, workers x examples of each (the panels' scales differ)"
        axis.set(title=title, ylabel="seconds/iteration")
        axis.margins(y=0.25)
        axis.legend(ncols=2)
    return figure


def draw_speedup(cells: list[dict]) -> Any:
    """Strong and weak scaling: examples per second against one worker's, and efficiency."""
    alone = {c["batch"]: c["batch"] / c["seconds"]["total"] for c in cells if c["workers"] == 1}
    many = [c for c in cells if c["workers"] > 1]
    if not many or not alone:
        return None
    most = max(c["workers"] for c in many)
    least = min(c["batch"] for c in many)
    total = max(alone)
    kinds = {
        "strong scaling": lambda c: c["workers"] * c["batch"] == total,
        "weak scaling": lambda c: c["batch"] == least,
    }
    figure, axes = pyplot().subplots(
        2, 2, figsize=(WIDTH, 6), sharex=True, sharey="row", layout="constrained"
    )
    for column, (kind, belongs) in enumerate(kinds.items()):
        base = alone.get(total if kind.startswith("strong") else least)
        upper, lower = axes[0][column], axes[1][column]
        for i, task in enumerate(sorted({c["task"] for c in many})):
            for j, rate in enumerate(rates_of(cells)):
                line = [(1, 1.0)] if base else []
                line += sorted(
                    (c["workers"], c["workers"] * c["batch"] / c["seconds"]["total"] / base)
                    for c in many
                    if base and belongs(c) and (c["task"], c["rate"]) == (task, rate)
                )
                if len(line) < 2:
                    continue
                workers, speedup = zip(*line, strict=True)
                style = {
                    "color": COLORS[i % len(COLORS)],
                    "marker": MARKS[j % len(MARKS)],
                    "ls": "-",
                }
                upper.plot(workers, speedup, label=f"{task}, {rate}", **style)
                shares = [s / n for n, s in line]
                lower.plot(workers, [100 * share for share in shares], **style)
        upper.plot([1, most], [1, most], "k:", label="ideal")
        upper.set(title=kind, ylabel="speed-up")
        lower.set(xlabel="workers (on the cores of one machine)", ylabel="efficiency, %")
        lower.set_ylim(bottom=0)
        lower.set_xticks(sorted({1, *(c["workers"] for c in many)}))
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def draw_traffic(cells: list[dict]) -> Any:
    """Bars of what each node sends and receives in an iteration, with what is expected."""
    most = max((c["workers"] for c in cells), default=1)
    chosen = {c["task"]: c for c in cells if c["workers"] == most > 1}
    if not chosen:
        return None
    size = (WIDTH, 3.2)
    figure, axes = pyplot().subplots(
        1, len(chosen), figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    for axis, (task, cell) in zip(axes[0], sorted(chosen.items()), strict=True):
        for offset, way, name in ((-0.2, 0, "sent"), (0.2, 1, "received")):
            places = [node + offset for node in range(most)]
            sizes = [size / 1e6 for size in cell[name]]
            axis.bar(places, sizes, 0.38, color=COLORS[way], hatch=HATCHES[way], label=name)
            nothing = [float("nan")] * 2  # is known of some tasks
            due = [(each or nothing)[way] / 1e6 for each in cell["expected"]]
            axis.plot(places, due, "k_", ms=14, label="expected" if way else None)
        axis.set(
            title=f"task {task}, {most} workers, {cell['rate']}",
            xlabel="node",
            ylabel="MB/iteration",
        )
        axis.set_xticks(range(most))
        axis.margins(y=0.2)
    axes[0][0].legend()
    return figure
