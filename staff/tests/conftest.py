"""Fixtures that several of the staff's tests share."""

import pytest


@pytest.fixture
def room(tmp_path, monkeypatch):
    """An empty class folder, whose submissions a stand-in grades (staff/tests/classes.py)."""
    from staff.classroom import decisions, jobs
    from staff.tests.classes import work_by_stand_in

    monkeypatch.setattr(jobs, "work", work_by_stand_in)
    monkeypatch.setattr(decisions, "load_manual", list)  # no manual items
    (tmp_path / "class").mkdir()
    return tmp_path / "class"
