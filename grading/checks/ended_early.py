"""A check needs the record that it looks at, not a clean exit: what a record lets it judge."""

from grading.checks import CHECKS, DEFAULT_SETTING, SETTING_OF
from grading.checks.evidence import Evidence
from grading.checks.graded_task import GradedTask
from grading.results import FAILED, PASSED, Outcome, not_run, unknown

OF_EPOCHS = ("data", "shuffle")  # what was not read may have come in the rest of the epoch
REPORTED = (
    "printed",
    "timing",
    "metric",
    "traffic",
    "saved",
)  # some of it is reported at the end of a run
BETWEEN_RANKS = ("batch", "gradients", "clipping", "identical")  # mean nothing on the same rows


def outcome_of(name: str, graded: GradedTask) -> Outcome:
    """The Outcome of a check, as far as the run that it looks at shows it."""
    if name in ("runs", "workers", "lamb", "decay"):  # they look at all runs, or at none
        return CHECKS[name](graded)
    setting = SETTING_OF.get(name, DEFAULT_SETTING)
    why = why_no_record(graded, setting)
    if why:
        return not_run(f"not run because {why}: see {graded.task.name}/runs")
    evidence = graded.runs[setting]
    if name in BETWEEN_RANKS and evidence.same_rows:
        return not_run(
            "not run because all ranks read the same rows: their gradients are equal, averaged or "
            "not, and the rows of one rank are the whole batch"
        )
    outcome = CHECKS[name](graded)
    return limited(name, outcome, graded, evidence) if evidence.cut else outcome


def why_no_record(graded: GradedTask, setting: str) -> str:
    """Why there is nothing for a check of this setting to look at; "" if there is."""
    if any(rank.broken for evidence in graded.runs.values() for rank in evidence.ranks):
        return "the record of the run is damaged"
    evidence = graded.runs.get(setting)
    if evidence is None:
        last = next(reversed(graded.runs), "functions")
        return f"setting {last} ended too early to go on to {setting}"
    if not any(rank.steps for rank in evidence.ranks):
        return f"no update was seen in setting {setting}"
    if evidence.cut and not evidence.seen.steps:
        return f"setting {setting} ended before every rank had made an update"
    return ""


def limited(name: str, outcome: Outcome, graded: GradedTask, evidence: Evidence) -> Outcome:
    """The Outcome of a check whose run was cut: no points for what could not be seen."""
    whole = saw_an_epoch(graded, evidence)
    ended = f"setting {evidence.setting.name} ended after step {evidence.seen.steps}"
    if outcome.status == PASSED and name != "start" and not whole:
        return unknown(f"right as far as it was seen, but {ended}, within the first epoch")
    if outcome.status == FAILED and (name in REPORTED or (name in OF_EPOCHS and not whole)):
        return not_run(f"not run because {ended}: see {graded.task.name}/runs")
    return outcome


def saw_an_epoch(graded: GradedTask, evidence: Evidence) -> bool:
    """Whether the ranks together read as many rows as an epoch has, up to the last full batch."""
    total = graded.batch * graded.workers
    steps = range(evidence.seen.steps)
    seen = sum(len(rank.steps[step].rows) for rank in evidence.ranks for step in steps)
    return seen >= graded.rows(evidence.setting.name) // total * total
