"""How figures look and are saved: readable in grey and for colour-blind readers, with a source."""

# Okabe and Ito's colours, told apart by colour-blind readers; hatches and lines tell apart in grey
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
HATCHES = ("", "//", "..", "xx", "\\\\")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKS = "osD^v<>"


def pyplot():
    """matplotlib's pyplot, which needs no screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure, name, source, folder):
    """Write a figure, if there is one, as PNG and SVG, with its source above; returns the files."""
    if figure is None:
        return []
    figure.suptitle(source, fontsize=8)
    paths = [folder / f"{name}.{suffix}" for suffix in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=120)
    pyplot().close(figure)
    return paths
