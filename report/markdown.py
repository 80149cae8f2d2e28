"""A student's Markdown as Typst: every text becomes a string, so nothing in it can be code."""

import re
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

OPEN = {
    "paragraph_open": "#par[",
    "em_open": "#emph[",
    "strong_open": "#strong[",
    "bullet_list_open": "#list(",
    "ordered_list_open": "#enum(",
    "list_item_open": "[",
    "blockquote_open": "#quote(block: true)[",
    "heading_open": "#strong[",
}
CLOSE = {
    "bullet_list_close": ")\n",
    "ordered_list_close": ")\n",
    "list_item_close": "],",
    "paragraph_close": "]\n",
    "blockquote_close": "]\n",
    "heading_close": "]#linebreak()\n",
    "em_close": "]",
    "strong_close": "]",
}


def sections(text: str) -> dict[str, str]:
    """Heading -> Markdown below it, for the `## ` headings outside of code blocks."""
    tokens, lines = MarkdownIt("commonmark").parse(text), text.splitlines()
    starts = [
        (token.map, inline.content.strip())
        for token, inline in pairwise(tokens)
        if token.map and token.type == "heading_open" and token.tag == "h2" and token.level == 0
    ]
    ends = [place[0] for place, _ in starts[1:]] + [len(lines)]
    return {
        title: "\n".join(lines[place[1] : end]).strip()
        for (place, title), end in zip(starts, ends, strict=True)
    }


def without_comments(text: str) -> str:
    """Markdown without <!-- comments -->, the template's hints."""
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).strip()


def typst(text: str) -> str:
    """Typst markup for Markdown (CommonMark, without images and HTML, which appear as text)."""
    return "".join(map(rendered, MarkdownIt("commonmark").parse(text)))


def rendered(token: Token) -> str:
    """Typst markup for one token."""
    if token.type == "inline":
        return "".join(map(rendered, token.children or []))
    if token.type in OPEN:
        return OPEN[token.type]
    if token.type in CLOSE:
        return CLOSE[token.type]
    if token.type in ("fence", "code_block"):
        return f"#raw(block: true, {string(token.content.rstrip())})\n"
    if token.type == "code_inline":
        return f"#raw({string(token.content)})"
    if token.type == "softbreak":
        return f"#{string(' ')}"
    if token.type == "hardbreak":
        return "#linebreak()"
    return f"#{string(token.content)}" if token.content else ""


def string(text: str) -> str:
    """A Typst string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
