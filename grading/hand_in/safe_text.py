"""Makes untrusted text safe for a terminal, a page, a spreadsheet, Markdown or a file's name."""

import hashlib
import html
import os
import re
import textwrap
from pathlib import Path

MOST = 4000  # characters of one text: a submission may print megabytes
FORMULAS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # Excel accepts the wide ones, too


def visible(text: object, most: int = MOST, keep: str = "\n") -> str:
    """Text whose control and direction characters are shown and have no effect, cut if too long."""
    text = str(text)
    if len(text) > most:
        text = f"{text[:most]} ... ({len(text) - most} more characters)"
    return "".join(c if c in keep or c.isprintable() else named(c) for c in text)


def named(character: str) -> str:
    """A control character's picture or number."""
    code = ord(character)
    if code < 32:
        return chr(0x2400 + code)
    return f"<U+{code:04X}>"


def line(text: object, most: int = 200) -> str:
    """Text on a single line, for a terminal or a table's cell."""
    return visible(re.sub(r"\s*\n\s*", " | ", str(text).strip()), most, keep="")


def for_html(text: object, most: int = MOST) -> str:
    """Text for a page, or for a quoted attribute in one."""
    return html.escape(visible(text, most), quote=True)


def for_csv(value: object) -> object:
    """A cell: numbers as they are, text on one line that no spreadsheet treats as a formula."""
    if isinstance(value, (int, float)):
        return value
    text = line(value)
    return "'" + text if text.lstrip().startswith(FORMULAS) else text


def for_markdown(text: object, most: int = MOST) -> str:
    """Text as a block of code that it cannot end: its backticks are replaced by look-alikes."""
    lines = visible(text, most).replace("`", "\u02cb").splitlines() or [""]
    wrapped = (
        textwrap.wrap(each, 100, subsequent_indent="    ", drop_whitespace=False) or [""]
        for each in lines
    )
    return "```text\n" + "\n".join(part for parts in wrapped for part in parts) + "\n```"


def inline_markdown(text: object, most: int = 200) -> str:
    """Text on a single line of Markdown, none of which is markup or becomes a link."""
    escaped = re.sub(r"([\\`*_\[\]<&|~@]|:(?=/))", r"\\\1", line(text, most))
    escaped = re.sub(r"^(\d*)([-+=.)#>])", r"\1\\\2", escaped)  # a list, heading or quote
    return re.sub(r"\b(www)\.", r"\1\\.", escaped, flags=re.IGNORECASE)


def file_name(name: str) -> str:
    """A name that is safe for a file on any system, and differs where the names differ."""
    safe = "".join(c if c.isalnum() or c in "_-. " else "_" for c in name).strip(". ")
    safe = safe.encode()[:120].decode(errors="ignore")
    if safe == name:
        return safe
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:8]
    return f"{safe or 'submission'}-{digest}"


def shown_name(path: Path) -> str:
    """A file's name as text: bytes that are not UTF-8 become question marks."""
    return os.fsencode(path.name).decode("utf-8", "replace")
