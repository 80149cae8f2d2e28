"""The assignment's sheet and the slides: filled in from the course's settings, readable as PDFs."""

import re
from pathlib import Path

from common.errors import UserError
from grading import rubric
from staff.classroom.course import read_course
from staff.deck import deck
from staff.sheet import pictures, sheet

import pypdf
import pytest

ROOT = Path(__file__).parents[2]
COURSE = """\
due: "2026-10-01 23:59"
time_zone: America/Chicago
late: {percent: 10, per: day, at_most_percent: 50}
"""


@pytest.fixture
def course(tmp_path):
    """A course's settings."""
    path = tmp_path / "course.yaml"
    path.write_text(COURSE)
    return path


def words_of(path):
    """A PDF's text, its lines joined."""
    return " ".join(" ".join(p.extract_text() for p in pypdf.PdfReader(path).pages).split())


def test_dates_and_points_come_from_the_settings(course):
    text = sheet.sheet(read_course(course, {}))
    assert "**Due:** Thursday, October 1, 2026, 23:59 (America/Chicago)." in text
    assert "loses 10 % of the points earned for each day begun, at most 50 %" in text
    found = sum(float(n) for n in re.findall(r"^\| .* \| ([\d.]+) \|$", text, re.MULTILINE))
    worth = sum(item.points for item in (*rubric.load(), *rubric.load_manual()))
    assert found == worth


def test_the_sheet_is_a_pdf_with_pictures_and_links(course, tmp_path):
    out = tmp_path / "assignment.pdf"
    assert sheet.main([str(out), "--course", str(course), "--letter"]) == 0
    reader = pypdf.PdfReader(out)
    assert tuple(map(float, reader.pages[0].mediabox[2:])) == (612, 792)
    words = words_of(out)
    for part in ("October 1, 2026", "What you will learn", "all_reduce", "Figure 4", "References"):
        assert part in words
    links = [
        note.get_object()["/A"]["/URI"]
        for page in reader.pages
        for note in page.get("/Annots", ())
        if "/URI" in note.get_object().get("/A", {})
    ]
    assert "https://arxiv.org/abs/2006.15704" in links
    assert all(link.startswith("https://") for link in links)


def test_the_slides_are_twelve(tmp_path):
    out = tmp_path / "slides.pdf"
    assert deck.main([str(out)]) == 0
    assert len(pypdf.PdfReader(out).pages) == 12
    assert "Mistakes that losses hide" in words_of(out)


def test_the_pictures_are_those_that_the_script_draws(tmp_path):
    for name in pictures.PICTURES:
        pictures.draw(name, tmp_path / f"{name}.svg")
        drawn = (ROOT / "docs" / "pictures" / f"{name}.svg").read_text()
        assert (tmp_path / f"{name}.svg").read_text().count("<path") == drawn.count("<path")


@pytest.mark.parametrize("main", [sheet.main, deck.main])
def test_a_file_that_cannot_be_written_is_refused(main, tmp_path):
    with pytest.raises(UserError, match="make it first"):
        main([str(tmp_path / "nowhere" / "x.pdf")])
    if main is sheet.main:
        with pytest.raises(UserError, match=r"end its name in .md or .pdf"):
            main([str(tmp_path / "x.doc")])
