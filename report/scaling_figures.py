"""Figures of a sweep: time per iteration, speed-up and efficiency, traffic of each node."""

from cluster.lab_network import bits_per_second
from report.compare import COLOURS, HATCHES

MARKS = "osD^v<>"


def measured_cells(sweep):
    """The cells that did not fail."""
    return [cell for cell in sweep["cells"] if "failure" not in cell]


def waiting(cell, cells):
    """Seconds of an iteration in which the cores wait for the network, or copy for it.

    DDP's waiting is part of its backward pass: it is what it takes longer than 2a and 2b there.
    """
    if cell["task"] != "3":
        return cell["seconds"]["sync"]
    same = [
        other["seconds"]["total"] - other["seconds"]["sync"]
        for other in cells
        if other["task"] in ("2a", "2b")
        and (other["workers"], other["batch"]) == (cell["workers"], cell["batch"])
    ]
    return max(0.0, cell["seconds"]["total"] - min(same)) if same else float("nan")


def figures(sweep, folder):
    """Draw the sweep as PNG and SVG in `folder`; yields the files made."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cells = measured_cells(sweep)
    machine = sweep["machine"]
    source = (
        f"cluster.sweep {' '.join(sweep['settings']['flags'])}\n{machine['processor']}, "
        f"{machine['cores']} cores for all workers, {(machine['git_commit'] or 'no commit')[:12]}"
    )
    drawings = {"time": draw_times, "speedup": draw_speedup, "traffic": draw_traffic}
    for name, draw in drawings.items():
        figure = draw(pyplot, cells)
        if figure is None:
            continue
        figure.suptitle(source, fontsize=7)
        for suffix in ("png", "svg"):
            path = folder / f"{name}.{suffix}"
            figure.savefig(path, dpi=120)
            yield path
        pyplot.close(figure)


def rates_of(cells):
    """The link rates of the cells with several workers, the slowest first."""
    return sorted({c["rate"] for c in cells if c["workers"] > 1}, key=bits_per_second)


def draw_times(pyplot, cells):
    """Bars of seconds per iteration for each link rate: computing, and waiting for the network."""
    rates = rates_of(cells)
    if not rates:
        return None
    figure, axes = pyplot.subplots(
        1, len(rates), figsize=(5 * len(rates), 4.2), squeeze=False, layout="constrained"
    )
    for axis, rate in zip(axes[0], rates, strict=True):
        shown = [c for c in cells if c["rate"] == rate and c["workers"] > 1]
        shown.sort(key=lambda c: (c["workers"], -c["batch"], c["task"]))
        names = [f"{c['task']}\n{c['workers']}x{c['batch']}" for c in shown]
        wait = [waiting(c, cells) for c in shown]
        work = [c["seconds"]["total"] - w for c, w in zip(shown, wait, strict=True)]
        places = range(len(shown))
        axis.bar(places, work, 0.7, color=COLOURS[0], label="computing")
        axis.bar(places, wait, 0.7, work, color=COLOURS[1], hatch=HATCHES[1], label="network")
        axis.set_xticks(places, names, fontsize=7)
        axis.set(title=rate, xlabel="task, workers x examples of each", ylabel="seconds/iteration")
        axis.margins(y=0.25)
        axis.legend(ncols=2)
    return figure


def draw_speedup(pyplot, cells):
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
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), sharex=True, layout="constrained")
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
                style = {"color": COLOURS[i], "marker": MARKS[j % len(MARKS)], "ls": "-"}
                upper.plot(workers, speedup, label=f"{task}, {rate}", **style)
                shares = [s / n for n, s in line]
                lower.plot(workers, [100 * share for share in shares], **style)
        upper.plot([1, most], [1, most], "k:", label="ideal")
        upper.set(title=kind, ylabel="speed-up")
        lower.set(xlabel="workers (on the cores of one machine)", ylabel="efficiency, %")
        lower.set_ylim(bottom=0)
    axes[0][0].legend(fontsize=7)
    return figure


def draw_traffic(pyplot, cells):
    """Bars of what each node sends and receives in an iteration, with what is expected."""
    most = max((c["workers"] for c in cells), default=1)
    chosen = {c["task"]: c for c in cells if c["workers"] == most > 1}
    if not chosen:
        return None
    figure, axes = pyplot.subplots(
        1, len(chosen), figsize=(4.5 * len(chosen), 4), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axis, (task, cell) in zip(axes[0], sorted(chosen.items()), strict=True):
        for offset, way, name in ((-0.2, 0, "sent"), (0.2, 1, "received")):
            places = [node + offset for node in range(most)]
            sizes = [size / 1e6 for size in cell[name]]
            axis.bar(places, sizes, 0.38, color=COLOURS[way], hatch=HATCHES[way], label=name)
            due = [each[way] / 1e6 for each in cell["expected"]]
            axis.plot(places, due, "k_", ms=14, label="expected" if way else None)
        axis.set(title=f"task {task}, {most} workers", xlabel="node", ylabel="MB/iteration")
        axis.set_xticks(range(most))
        axis.margins(y=0.2)
    axes[0][0].legend()
    return figure
