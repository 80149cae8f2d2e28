"""results.json as Gradescope reads it: complete, valid and with every check at any moment."""

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

from common.files import write_whole
from common.tasks import ASSIGNED
from grading.hand_in.safe_text import for_markdown
from grading.results import PASSED, VISIBILITIES, Report, Result
from grading.rubric import Check

NOT_YET = "not run yet: the autograder was stopped before"
GRADER_FAILED = "The autograder itself failed, and your work is not graded: ask your instructor."
RANKED = {task.name: task.title for task in ASSIGNED if task.by_hand}  # on the leaderboard


class Results:
    """What is known of a submission so far; `checks` are the rubric's.

    `summary` is shown above the tests, `missing` in place of a result that there is not.
    """

    def __init__(self, folder: Path, checks: Sequence[Check] = ()):
        self.path = folder / "results.json"
        self.checks = checks
        self.began = time.monotonic()
        self.seen = {}  # check -> Result
        self.report = None
        self.summary = ""
        self.missing = NOT_YET
        self.failed = False

    def add(self, result: Result) -> None:
        """Record a check's result, and write."""
        self.seen[result.check] = result
        self.write()

    def finish(self, report: Report) -> None:
        """Record the whole report, and write."""
        self.report = report
        self.seen |= {result.check: result for result in report.results}
        self.missing = "not run: this submission was not asked for it"
        self.write()

    def refuse(self, why: str) -> None:
        """Record why the submission cannot be graded at all, and write."""
        self.summary = f"This submission could not be graded.\n\n{for_markdown(why)}"
        self.missing = f"not run: {why}"
        self.write()

    def stop(self, why: str) -> None:
        """Record that time is up, and write."""
        self.summary = f"Grading was stopped before it finished.\n\n{for_markdown(why)}"
        self.write()

    def fail(self) -> None:
        """Record that the grader itself failed, which gives no points, and write."""
        self.summary = GRADER_FAILED
        self.missing = f"not run: {GRADER_FAILED}"
        self.failed = True
        self.write()

    def write(self) -> None:
        """Write results.json, whole or not at all."""
        write_whole(self.path, json.dumps(self.facts(), indent=1, allow_nan=False) + "\n")

    def facts(self) -> dict:
        """The file's content."""
        tests = [self.test(number, check) for number, check in enumerate(self.checks, 1)]
        causes = {check: each.cause for check, each in self.seen.items() if each.cause}
        return {
            "score": 0.0 if self.failed else sum(test["score"] for test in tests),
            "execution_time": round(time.monotonic() - self.began, 1),
            "output": self.summary,
            "output_format": "md",
            "visibility": "visible",
            "stdout_visibility": "hidden",
            "tests": tests,
            "leaderboard": self.leaderboard(),
            "extra_data": {
                "causes": causes,
                "isolation": self.report.isolation if self.report else "",
                "grader_failed": self.failed,
            },
        }

    def test(self, number: int, check: Check) -> dict:
        """A check as Gradescope shows it."""
        result, possible = self.seen.get(check.id), float(check.points)
        points = float(result.points) if result else 0.0
        return {
            "number": str(number),
            "name": f"{check.id}: {check.title}",
            "score": min(max(points, 0.0), possible) if math.isfinite(points) else 0.0,
            "max_score": possible,
            "status": "passed" if result and result.status == PASSED else "failed",
            "output": for_markdown(result.text() if result else self.missing),
            "output_format": "md",
            "tags": [check.task],
            "visibility": check.visibility if check.visibility in VISIBILITIES else "hidden",
        }

    def leaderboard(self) -> list[dict]:
        """Times of synchronization over a flat all_reduce's, of tasks whose gradients are right."""
        ratios = self.report.sync_ratio if self.report and not self.failed else {}
        found = []
        for task, title in RANKED.items():
            ratio, result = float(ratios.get(task, math.nan)), self.seen.get(f"{task}/gradients")
            if math.isfinite(ratio) and result and result.status == PASSED:
                name = f"{title}: synchronization / all_reduce"
                found.append({"name": name, "value": round(ratio, 2), "order": "asc"})
        return found
