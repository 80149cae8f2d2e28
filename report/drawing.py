"""What the commands that draw one figure of some runs share."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.commands import program
from report.figures import source_of
from report.runs import Run
from report.style import save


def parser_of_runs(description: str | None) -> argparse.ArgumentParser:
    """A parser of run folders and --output_dir; the description is shown as it is written."""
    parser = argparse.ArgumentParser(prog=program(), description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument(
        "--output_dir", type=Path, default=Path("figures"), help="(default: figures)"
    )
    return parser


def save_figure(figure: Any, name: str, runs: Sequence[Run], folder: Path) -> None:
    """Write the figure with what it comes from, as PNG and SVG, and say where."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in save(figure, name, source_of(runs), folder):
        print(f"figure: {path}")
