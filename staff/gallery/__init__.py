"""Submissions that grading must judge rightly: wrong ones, each with its cause, and right ones."""
