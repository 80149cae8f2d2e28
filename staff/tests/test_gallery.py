"""The gallery's sample: as many submissions as time allows, in an order that a seed decides."""

import contextlib
import sys

from grading.results import Report
from staff.gallery import __main__ as gallery


def grade_sample(monkeypatch, capsys, *arguments):
    """Run the gallery with a grader that passes everything; (exit code, the order, the output)."""
    graded = []

    def score(variant, *_):
        graded.append(variant.name)
        return gallery.Score(variant, Report(variant.name), "")

    monkeypatch.setattr(gallery, "score", score)
    monkeypatch.setattr(gallery, "Session", contextlib.nullcontext)
    monkeypatch.setattr(sys, "argv", ["gallery", *arguments])
    return gallery.main(), graded, capsys.readouterr().out


def test_a_seed_decides_the_order_of_a_sample(monkeypatch, capsys):
    code, first, printed = grade_sample(monkeypatch, capsys, "--minutes", "9", "--seed", "one")
    assert code == 0
    assert "--seed one" in printed
    assert f"{len(first)} of {len(first)} submissions graded" in printed
    assert grade_sample(monkeypatch, capsys, "--minutes", "9", "--seed", "one")[1] == first
    _, other, _ = grade_sample(monkeypatch, capsys, "--minutes", "9", "--seed", "two")
    _, every, _ = grade_sample(monkeypatch, capsys)
    assert first != other
    assert sorted(first) == sorted(other) == sorted(every)


def test_no_submission_is_started_when_time_is_up(monkeypatch, capsys):
    code, graded, printed = grade_sample(monkeypatch, capsys, "--minutes", "0")
    assert (code, graded) == (True, [])  # a gallery of which nothing was graded has not passed
    assert "0 of " in printed
