"""A student's Markdown as Typst: every text becomes a string, so nothing in it can be code."""

import re
from itertools import pairwise

from report.pictures import WIDEST, Pictures

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode
from mdit_py_plugins.dollarmath import dollarmath_plugin

AROUND = {  # type of a node -> what stands before and after its children
    "paragraph": ("#par[", "]\n"),
    "em": ("#emph[", "]"),
    "strong": ("#strong[", "]"),
    "bullet_list": ("#list(", ")\n"),
    "ordered_list": ("#enum(", ")\n"),
    "list_item": ("[", "],"),
    "blockquote": ("#quote(block: true)[", "]\n"),
    "heading": ("#strong[", "]#linebreak()\n"),
    "thead": ("table.header(", "),"),
    "th": ("[", "],"),
    "td": ("[", "],"),
}
BREAKS = {"softbreak": '#" "', "hardbreak": "#linebreak()"}


def parser() -> MarkdownIt:
    """CommonMark with tables and $formulas$; `$5 and $6` are amounts."""
    strict = {"allow_labels": False, "allow_space": False, "allow_digits": False}
    return MarkdownIt("commonmark").enable("table").use(dollarmath_plugin, **strict)


def sections(text: str) -> dict[str, str]:
    """Heading -> Markdown below it, for the `## ` headings outside of code blocks."""
    tokens, lines = parser().parse(text), text.splitlines()
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


def typst(text: str, pictures: Pictures | None = None) -> str:
    """Typst markup for Markdown; HTML appears as text, and what `pictures` cannot show as code."""
    return within(SyntaxTreeNode(parser().parse(text)), pictures)


def within(node: SyntaxTreeNode, pictures: Pictures | None) -> str:
    """Typst markup for what a node holds."""
    return "".join(rendered(child, pictures) for child in node.children)


def rendered(node: SyntaxTreeNode, pictures: Pictures | None) -> str:
    """Typst markup for one node."""
    kind = node.type
    if kind.startswith("math_"):
        return formula(node.content, kind == "math_inline", pictures)
    if kind == "image":
        return image(node, False, pictures)
    if kind in ("fence", "code_block"):
        return f"#raw(block: true, {string(node.content.rstrip())})\n"
    if kind == "code_inline":
        return f"#raw({string(node.content)})"
    if kind in BREAKS:
        return BREAKS[kind]
    if kind == "table":
        return table(node, pictures)
    if kind == "paragraph" and (alone := lone_image(node)):
        return image(alone, True, pictures)
    if node.children:
        before, after = around(node)
        return before + within(node, pictures) + after
    if kind in ("th", "td"):
        return "[],"
    return f"#{string(node.content)}" if kind != "hr" and node.content else ""


def around(node: SyntaxTreeNode) -> tuple[str, str]:
    """What stands before and after a node's children; a link elsewhere than to https is text."""
    if node.type == "link" and str(node.attrs["href"]).startswith("https://"):
        return f"#link({string(str(node.attrs['href']))})[", "]"
    return AROUND.get(node.type, ("", ""))


def table(node: SyntaxTreeNode, pictures: Pictures | None) -> str:
    """A table, with the columns aligned as its second line says."""
    heads = node.children[0].children[0].children
    styles = [str(head.attrs.get("style", "")) for head in heads]
    sides = [style.removeprefix("text-align:") or "left" for style in styles]
    columns = f"columns: {len(heads)}, align: ({', '.join(sides)},), "
    return f"#align(center, table({columns}{within(node, pictures)}))\n"


def lone_image(paragraph: SyntaxTreeNode) -> SyntaxTreeNode | None:
    """The image that is all a paragraph has; None where it has anything else."""
    [inline] = paragraph.children
    only = len(inline.children) == 1 and inline.children[0].type == "image"
    return inline.children[0] if only else None


def image(node: SyntaxTreeNode, alone: bool, pictures: Pictures | None) -> str:
    """An image; one that stands alone has its description as its caption."""
    path, about = str(node.attrs["src"]), node.content
    name = pictures.image(path) if pictures else None
    if name is None:
        return f"#raw({string(f'![{about}]({path})')})"
    shown = f"image({string(name)}, alt: {string(about or path)})"
    caption = f", caption: [#{string(about)}]" if about else ""
    return f"#figure({shown}{caption})\n" if alone else f"#box({shown})"


def formula(tex: str, inline: bool, pictures: Pictures | None) -> str:
    """A formula within a line, or in one of its own."""
    large = tex if inline else tex.replace(r"\frac", r"\dfrac")
    drawn = pictures.formula(large) if pictures else None
    if drawn is None:
        dollars = "$" if inline else "$$"
        return f"#raw({string(f'{dollars}{tex.strip()}{dollars}')})"
    name, width, height, depth = drawn
    if inline:
        shown = f"image({string(name)}, height: {height:.2f}pt, alt: {string(tex)})"
        return f"#box(baseline: {depth:.2f}pt, {shown})"
    shown = f"image({string(name)}, width: {min(width, WIDEST):.2f}pt, alt: {string(tex)})"
    return f"#align(center, {shown})\n"


def string(text: str) -> str:
    """A Typst string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
