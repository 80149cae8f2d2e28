"""Images and formulas of a student's text, as files that Typst shows."""

import shutil
from pathlib import Path

from common.errors import UserError
from report.style import pyplot

SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg")
POINTS = 10.5  # the report's text
WIDEST = 450  # points


class Pictures:
    """Puts pictures into the folder that Typst reads; `problems` has (what, fix) of the others.

    Paths of images are relative to `source`, the folder of the student's text.
    """

    def __init__(self, source: Path, folder: Path) -> None:
        self.source = source
        self.folder = folder
        self.problems: list[tuple[str, str]] = []
        self.count = 0

    def new_name(self, suffix: str) -> str:
        """A file name that is not taken."""
        self.count += 1
        return f"picture-{self.count}{suffix}"

    def image(self, path: str) -> str | None:
        """The name of an image's copy; None, with a problem noted, where it cannot be shown."""
        file = self.source / path
        try:
            if file.suffix.lower() not in SUFFIXES:
                raise UserError(f"convert it to one of {', '.join(SUFFIXES)}")
            name = self.new_name(file.suffix.lower())
            check_image(shutil.copyfile(file, self.folder / name))
            return name
        except OSError as error:
            fix = f"check the path, relative to {self.source.resolve().name}/ ({error.strerror})"
        except UserError as error:
            fix = str(error)
        self.problems.append((f"the image {path} cannot be shown", fix))
        return None

    def formula(self, tex: str) -> tuple[str, float, float, float] | None:
        """(file, width, height, depth below the line in points) of a formula; None as `image`.

        matplotlib sets it, which reads most of TeX's mathematics, but no environments.
        """
        from matplotlib.font_manager import FontProperties
        from matplotlib.mathtext import MathTextParser, math_to_image

        pyplot()  # sets the fonts
        text, font = f"${' '.join(tex.split())}$", FontProperties(size=POINTS)
        name = self.new_name(".svg")
        try:
            width, height, depth, *_ = MathTextParser("path").parse(text, 72, font)
            math_to_image(text, str(self.folder / name), font, dpi=72, format="svg")
        except (ValueError, RecursionError) as error:
            last = (str(error).strip().splitlines() or [""])[-1]
            reason = last.removeprefix("ParseFatalException: ").split("  (at")[0]
            fix = f"write it in the TeX that matplotlib's mathtext reads: {reason}"
            self.problems.append((f"the formula {text} cannot be set", fix))
            return None
        return name, width, height, depth


def check_image(path: Path) -> None:
    """Raise UserError for a file that is not an image of its kind."""
    from xml.etree import ElementTree

    from PIL import Image, UnidentifiedImageError

    try:
        if path.suffix == ".svg":
            ElementTree.parse(path)
        else:
            with Image.open(path) as image:
                image.verify()
    except (ElementTree.ParseError, UnidentifiedImageError, SyntaxError, ValueError) as error:
        raise UserError(f"save it again: it is not a valid {path.suffix[1:]} file") from error
