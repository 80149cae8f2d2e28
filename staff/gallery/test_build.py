"""Every submission of the gallery can be built, and is Python."""

from common.tasks import SCRIPTS

import pytest

from .right import RIGHT
from .variants import ROOT, build
from .wrong import WRONG

ALL = (*WRONG, *RIGHT)


@pytest.mark.parametrize("variant", ALL, ids=lambda variant: variant.name)
def test_it_builds_and_differs_from_the_solution(variant, tmp_path):
    build(variant, tmp_path / "submission")  # asserts that every edit finds its place
    scripts = sorted((tmp_path / "submission").rglob("*.py"))
    assert scripts
    changed = False
    for path in scripts:
        compile(path.read_text(), str(path), "exec")
        ours = ROOT / path.relative_to(tmp_path / "submission")
        changed |= not ours.exists() or ours.read_text() != path.read_text()
    assert changed or not variant.edits
    assert variant.note
    assert "\n" not in variant.note


def test_names_are_unique_and_wrong_ones_say_what_must_fail():
    names = [variant.name for variant in ALL]
    assert len(set(names)) == len(names)
    assert {variant.task for variant in ALL} <= set(SCRIPTS)
    assert all(variant.fails and variant.cause for variant in WRONG)
    assert not any(variant.fails or variant.cause for variant in RIGHT)


def test_there_are_enough_of_both():
    assert len(WRONG) >= 27
    assert len({variant.cause for variant in WRONG}) >= 12
    assert len(RIGHT) >= 15
