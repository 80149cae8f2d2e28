"""results.json as Gradescope reads it: whole, valid and with every check, whenever it is read."""

import json
import math
import time
from pathlib import Path

from grading.hand_in.safe_text import for_markdown, write_whole
from grading.results import PASSED, VISIBILITIES

NOT_YET = "not run yet: the autograder was stopped before"
OURS = "The autograder itself failed, and your work is not graded: ask your instructor."
RANKED = {"task2a": "2(a)", "task2b": "2(b)"}


class Results:
    """What is known of a submission so far; `checks` are the rubric's."""

    def __init__(self, folder: Path, checks):
        self.path, self.checks = folder / "results.json", checks
        self.began, self.seen, self.report = time.monotonic(), {}, None
        self.said, self.otherwise, self.failed = "", NOT_YET, False

    def add(self, result):
        """Note a check's result, and write."""
        self.seen[result.check] = result
        self.write()

    def finish(self, report):
        """Note the whole report, and write."""
        self.report = report
        self.seen |= {result.check: result for result in report.results}
        self.otherwise = "not run: this submission was not asked for it"
        self.write()

    def refuse(self, why):
        """Note why the submission cannot be graded at all, and write."""
        self.said = f"This submission could not be graded.\n\n{for_markdown(why)}"
        self.otherwise = f"not run: {why}"
        self.write()

    def stop(self, why):
        """Note that time is up, and write."""
        self.said = f"Grading was stopped before its end.\n\n{for_markdown(why)}"
        self.write()

    def fail(self):
        """Note that the grader itself failed, which gives no points, and write."""
        self.said, self.otherwise, self.failed = OURS, f"not run: {OURS}", True
        self.write()

    def write(self):
        """Write results.json, whole or not at all."""
        write_whole(self.path, json.dumps(self.facts(), indent=1, allow_nan=False) + "\n")

    def facts(self):
        """The file's content."""
        tests = [self.test(number, check) for number, check in enumerate(self.checks, 1)]
        causes = {check: each.cause for check, each in self.seen.items() if each.cause}
        return {
            "score": 0.0 if self.failed else sum(test["score"] for test in tests),
            "execution_time": round(time.monotonic() - self.began, 1),
            "output": self.said,
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

    def test(self, number, check):
        """A check as Gradescope shows it."""
        name = f"{check.task}/{check.name}"  # as in Result.check
        result, possible = self.seen.get(name), float(check.points)
        points = float(result.points) if result else 0.0
        visibility = getattr(check, "visibility", "visible")
        return {
            "number": str(number),
            "name": f"{name}: {check.title}",
            "score": min(max(points, 0.0), possible) if math.isfinite(points) else 0.0,
            "max_score": possible,
            "status": "passed" if result and result.status == PASSED else "failed",
            "output": for_markdown(result.text() if result else self.otherwise),
            "output_format": "md",
            "tags": [check.task],
            "visibility": visibility if visibility in VISIBILITIES else "hidden",
        }

    def leaderboard(self):
        """Times of synchronisation over a flat all_reduce's, of tasks that do synchronise."""
        ratios = self.report.sync_ratio if self.report and not self.failed else {}
        return [
            {"name": f"{shown}: synchronisation / all_reduce", "value": round(ratio, 2),
             "order": "asc"}
            for task, shown in RANKED.items()
            if math.isfinite(ratio := float(ratios.get(task, math.nan)))
            and (result := self.seen.get(f"{task}/gradients"))
            and result.status == PASSED
        ]  # fmt: skip
