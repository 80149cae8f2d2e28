"""What a check finds: one of three outcomes, and what to say of it."""

from typing import NamedTuple

from grading.diagnosis import Cause
from grading.results import FAILED, NOT_RUN, PASSED, UNKNOWN


class Outcome(NamedTuple):
    """A check's finding; the fields are those of grading.results.Result."""

    status: str
    expected: str = ""
    got: str = ""
    where: str = ""
    cause: Cause = Cause("", "")
    tolerance: str = ""


def passed(got="", tolerance=""):
    return Outcome(PASSED, got=got, tolerance=tolerance)


def failed(expected, got, where, cause, tolerance=""):
    return Outcome(FAILED, expected, got, where, cause, tolerance)


def unknown(why):
    return Outcome(UNKNOWN, cause=Cause("", why))


def not_run(why):
    return Outcome(NOT_RUN, cause=Cause("", why))
