"""The rubric: which checks each task has, what they are worth, and what each needs."""

from pathlib import Path
from typing import NamedTuple

from common.errors import UserError
from grading.results import VISIBILITIES

import yaml

FILE = Path(__file__).with_name("rubric.yaml")


class Check(NamedTuple):
    """One check of one task; `needs` are names of checks that must have passed before.

    `visibility` is Gradescope's: visible, hidden, after_due_date or after_published.
    """

    task: str
    name: str
    title: str
    points: float
    needs: tuple
    visibility: str = "visible"

    @property
    def id(self):
        return f"{self.task}/{self.name}"


def load(file=FILE, tasks=None):
    """The rubric's checks, in order; only those of `tasks`, if given.

    Raises UserError for a file that is not a rubric, with what is wrong in it.
    """
    from grading.checks import CHECKS

    try:
        facts = yaml.safe_load(Path(file).read_text())
        texts, points = facts["checks"], facts["points"]
        found = [
            Check(
                *(task, name, str(texts[name]["title"]), float(worth), tuple(texts[name]["needs"])),
                texts[name].get("visibility", "visible"),
            )
            for task, of_task in points.items()
            for name, worth in of_task.items()
        ]
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{file}: is no rubric ({type(error).__name__}: {error})") from None
    for check in found:
        unknown = {check.name, *check.needs} - set(CHECKS)
        if unknown:
            raise UserError(
                f"{file}: {check.id}: there is no check {', '.join(sorted(unknown))}; there are "
                f"{', '.join(CHECKS)}"
            )
        if check.visibility not in VISIBILITIES:
            raise UserError(f"{file}: {check.id}: visibility is one of {', '.join(VISIBILITIES)}")
        if check.points < 0:
            raise UserError(f"{file}: {check.id}: {check.points:g} points; give 0 or more")
    unknown = set(tasks or ()) - {check.task for check in found}
    if unknown:
        raise UserError(f"there is no task {', '.join(sorted(unknown))} in {file}")
    return [check for check in found if not tasks or check.task in tasks]
