"""Grades the gallery: every wrong submission is to be caught, for its reason, and no right one."""

import importlib.util
import tempfile
from pathlib import Path
from typing import NamedTuple

from grading import rubric
from grading.checks import DEFAULT_SETTING, SETTING_OF
from grading.grader import grade
from grading.results import FAILED, PASSED, Report

from .variants import Variant, build


class Score(NamedTuple):
    """What grading said of a variant, and what is wrong with that: "" if nothing is."""

    variant: Variant
    report: Report
    problem: str


def can_run(variant):
    """Whether what it needs is installed."""
    return not variant.needs or importlib.util.find_spec(variant.needs) is not None


def score(variant, session, quick=False):
    """Build a variant, grade the task that it is about, and judge the verdict.

    With `quick` a wrong one is run only in the setting that its first failing check looks at, and
    in the others only if that does not show what is wrong.
    """
    with tempfile.TemporaryDirectory(prefix="gallery-") as folder:
        submission = Path(folder) / variant.name
        build(variant, submission)
        found = graded(variant, submission, session, enough_for(variant) if quick else None)
        if quick and found.problem and variant.fails:
            found = graded(variant, submission, session, None)
    return found


def graded(variant, submission, session, settings):
    """The Score of a variant's folder, in these settings (None: in all)."""
    mapping = variant.mapping or None
    report = grade(submission, [variant.task], mapping, session=session, settings=settings)
    return Score(variant, report, problem_of(variant, report))


def enough_for(variant):
    """The settings that show what is wrong with a variant, as a rule; None for all."""
    needs = {check.name: check.needs for check in rubric.load(tasks=[variant.task])}
    looked_at = {*variant.fails, *(one for name in variant.fails for one in needs[name])}
    return {SETTING_OF.get(name, DEFAULT_SETTING) for name in looked_at} or None


def problem_of(variant, report):
    """How a report differs from what the variant's must be, in a few lines."""
    results = {result.check.partition("/")[2]: result for result in report.results}
    if not variant.fails:
        return "\n".join(r.text() for r in report.results if r.status != PASSED)
    missed = [name for name in variant.fails if results[name].status != FAILED]
    told = "\n".join(r.text() for r in report.results if r.status != PASSED)
    if missed:
        return f"{', '.join(missed)} did not fail\n{told}"
    cause = results[variant.fails[0]].cause
    return (
        "" if cause == variant.cause else f"the cause is {cause!r}, not {variant.cause!r}\n{told}"
    )
