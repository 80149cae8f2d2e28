"""Grades one submission: sandbox, probe, checks, diagnoses. A submission is never imported here."""
