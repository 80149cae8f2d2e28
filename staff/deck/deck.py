"""Write the slides for a lecture on the assignment, as a PDF.

    python -m staff deck slides.pdf

Their source is staff/deck/slides.typ, the pictures are those of docs/pictures and cluster/figures.
"""

import argparse
from pathlib import Path

from common.errors import UserError
from common.files import whole

SLIDES = Path(__file__).with_name("slides.typ")
KIT = SLIDES.parents[2]


def main(argv: list[str] | None = None) -> int:
    """Write the slides; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m staff deck", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("path", type=Path, metavar="FILE", help="the PDF to write")
    args = parser.parse_args(argv)
    if not args.path.resolve().parent.is_dir():
        raise UserError(f"{args.path}: there is no folder {args.path.parent}; make it first")
    import typst as compiler

    with whole(args.path) as part:
        compiler.compile(SLIDES, output=part, format="pdf", root=KIT)
    print(f"wrote {args.path}")
    return 0
