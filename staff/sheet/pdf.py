"""A page of ours in Markdown as a PDF: headings, tables, pictures, links."""

import shutil
import tempfile
from pathlib import Path

from common.files import whole
from report.markdown import sections, string, typst, without_comments
from report.pictures import Pictures

TEMPLATE = Path(__file__).with_name("sheet.typ")


def write_pdf(text: str, root: Path, path: Path, paper: str) -> None:
    """Write the Markdown `text`, whose pictures are relative to `root`; `paper` is Typst's name."""
    import typst as compiler

    title, _, rest = without_comments(text).removeprefix("# ").partition("\n")
    before = rest[: rest.index("\n## ")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pictures = Pictures(root, folder)
        body = typst(before, pictures)
        for heading, part in sections(rest).items():
            body += f"#heading({string(heading)})\n{typst(part, pictures)}"
        (folder / "body.typ").write_text(body)
        shutil.copy(TEMPLATE, folder)
        inputs = {"title": title, "paper": paper}
        with whole(path) as part:
            compiler.compile(folder / TEMPLATE.name, output=part, format="pdf", sys_inputs=inputs)
