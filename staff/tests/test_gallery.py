"""The gallery's sample: as many submissions as time allows, in an order that a seed decides."""

import contextlib
import json
import sys

from grading.results import Report
from staff.gallery import __main__ as gallery

RANGE = {"noise": 1.0, "wrong": 5.0}
WIDE = {"noise": 9.0, "wrong": 9.5}


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


def measured(monkeypatch, tmp_path, deviations, *arguments, stored=None):
    """Measure with a grader that finds these deviations (variant -> them); what is stored then."""
    file = tmp_path / "tolerances.json"
    file.write_text(json.dumps(stored or dict.fromkeys(gallery.MEASURES, RANGE)))
    graded = []

    def score(variant, *_):
        graded.append(variant)
        wrong = RANGE["wrong"] if variant.fails else RANGE["noise"]
        found = deviations.get(variant.name, dict.fromkeys(gallery.MEASURES, wrong))
        report = Report(variant.name)
        report.measured = {f"{variant.task}/{name}": value for name, value in found.items()}
        return gallery.Score(variant, report, "")

    monkeypatch.setattr(gallery, "score", score)
    monkeypatch.setattr(gallery, "Session", contextlib.nullcontext)
    monkeypatch.setattr(gallery.rubric, "TOLERANCES", file)
    monkeypatch.setattr(sys, "argv", ["gallery", "--measure", *arguments])
    assert not gallery.main()
    return json.loads(file.read_text()), graded


def test_one_check_is_measured_by_what_bears_on_it_and_the_others_are_kept(monkeypatch, tmp_path):
    stored = dict.fromkeys(gallery.MEASURES, WIDE)
    found, graded = measured(monkeypatch, tmp_path, {}, "--only", "clipping", stored=stored)
    assert found == {**stored, "clipping": RANGE}
    assert {variant.fails[0] for variant in graded if variant.fails} == {"clipping"}
    assert not any(variant.task == "task4" for variant in graded)


def test_a_few_submissions_widen_what_is_stored_and_never_narrow_it(monkeypatch, tmp_path):
    right, wrong = "reduces_flat", "summed_not_divided_2b"
    near = {right: {"gradients": 2.0, "loss": 0.1}, wrong: {"gradients": 3.0}}
    found, _ = measured(monkeypatch, tmp_path, near, right, wrong)
    assert found == {
        **dict.fromkeys(gallery.MEASURES, RANGE),
        "gradients": {"noise": 2.0, "wrong": 3.0},
    }


def test_all_submissions_set_what_is_stored(monkeypatch, tmp_path):
    stored = dict.fromkeys(gallery.MEASURES, WIDE)
    found, _ = measured(monkeypatch, tmp_path, {}, stored=stored)
    assert found == dict.fromkeys(gallery.MEASURES, RANGE)
