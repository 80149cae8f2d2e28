"""Grades one submission: runs it, replays what it read, and makes every check of the rubric."""

import time
import traceback
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path

from common.errors import UserError
from common.tasks import SCRIPTS
from grading import rubric
from grading.checks.ended_early import outcome_of
from grading.checks.graded_task import GradedTask
from grading.mapping import Mapping, read_mapping
from grading.results import (
    FAILED,
    NOT_RUN,
    PASSED,
    Cause,
    Outcome,
    Report,
    Result,
    failed,
    not_run,
    unknown,
)
from grading.runner import Runner
from grading.sandbox.session import Session


def grade(
    path: Path,
    tasks: Collection[str] | None = None,
    mapping: Path | str | None = None,
    on_result: Callable[[Result, Report], None] | None = None,
    session: Session | None = None,
    settings: Collection[str] | None = None,
) -> Report:
    """Grade the submission in the folder `path`.

    `tasks` are all, if not given; `mapping` is "auto", or a file like a submission's own
    grading.yaml, for the tasks that this leaves out. `on_result(result, report)` is called after
    every check. `settings` are those to run, if not all that the checks look at: a check of another
    is "not run". Raises UserError for a folder or mapping that cannot be used.
    """
    start, path = time.monotonic(), Path(path)
    checks = rubric.load(tasks=tasks)
    if not path.is_dir():
        raise UserError(
            f"{path}: there is no such folder; unpack an archive first, or grade it "
            "with `python -m staff grade` in a folder of submissions"
        )
    commands = read_mapping(path, mapping)
    report = Report(path.name)
    with ExitStack() as stack:
        session = session or stack.enter_context(Session())
        submission = Submission(path, commands, session, settings)
        for check in checks:
            result = submission.check(check)
            report.results.append(result)
            report.isolation = submission.runner.isolation
            report.sync_ratio = submission.runner.sync_ratio
            report.measured = submission.measured
            report.outputs = submission.runner.outputs
            report.commands = submission.runner.calls.used
            report.seconds = time.monotonic() - start
            if on_result:
                on_result(result, report)
    return report


class Submission:
    """A submission being graded: its tasks are run when the first check asks for them."""

    def __init__(
        self,
        path: Path,
        mapping: Mapping,
        session: Session,
        settings: Collection[str] | None = None,
    ):
        self.runner = Runner(path, mapping, session)
        self.settings = settings
        self.tolerances = rubric.load_tolerances()
        self.graded = {}  # task -> GradedTask
        self.outcomes = {}  # check -> its Outcome
        self.measured = {}  # check -> its largest deviation

    def check(self, check: rubric.Check) -> Result:
        """The Result of one check of the rubric."""
        outcome = self.outcome(check)
        self.outcomes[check.id] = outcome
        see = ""
        if outcome.status == FAILED:
            see = rubric.SECTIONS.get(outcome.cause.name, rubric.SECTIONS[check.task])
        return Result(
            check.id,
            check.title,
            outcome.status,
            points=check.points if outcome.status == PASSED else 0.0,
            possible=check.points,
            expected=outcome.expected,
            got=outcome.got,
            where=outcome.where,
            cause=outcome.cause.name,
            diagnosis=outcome.cause.sentence,
            see=see,
            tolerance=outcome.tolerance,
        )

    def outcome(self, check: rubric.Check) -> Outcome:
        """The check's Outcome, whatever the submission does."""
        why = self.why_not(check)
        if why:
            return not_run(f"not run because {why}")
        try:
            graded = self.run_once(check.task)
            outcome = outcome_of(check.name, graded)
        except UserError as error:
            return failed("a script to run", "none", "", Cause("missing", str(error)))
        except Exception as error:  # a submission may write anything: no pass, no crash
            line = traceback.extract_tb(error.__traceback__)[-1]
            return unknown(f"internal grader error: {type(error).__name__}: {error} ({line.name})")
        self.measured |= {f"{check.task}/{name}": off for name, off in graded.measured.items()}
        return outcome

    def why_not(self, check: rubric.Check) -> str:
        """Which earlier outcome leaves a check without meaning; "" if none does."""
        for need in check.needs:
            found = self.outcomes.get(f"{check.task}/{need}")
            if found and found.status != PASSED:
                return f"{check.task}/{need} {ending_of(found.status)}"
        for other, cause in check.void.items():
            found = self.outcomes.get(f"{check.task}/{other}")
            if found and found.status == FAILED and found.cause.name == cause:
                return f"{check.task}/{other} failed: {found.cause.sentence}"
        return ""

    def run_once(self, name: str) -> GradedTask:
        """The task's runs; they are made at the first call."""
        if name not in self.graded:
            asked = rubric.settings_of(rubric.load(tasks=[name]), name)
            settings = [one for one in asked if not self.settings or one in self.settings]
            self.graded[name] = self.runner.run_task(SCRIPTS[name], settings, self.tolerances)
        return self.graded[name]


def ending_of(status: str) -> str:
    """A status as the end of a sentence."""
    return {FAILED: "failed", NOT_RUN: "was not run"}.get(status, status)
