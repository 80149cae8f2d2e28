"""Attacks on the grader, each with what it would gain; the tests assert that it gains nothing."""
