"""The course's settings, staff/course.yaml: the due date and what lateness costs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from grading.hand_in.safe_text import line
from staff.classroom.entries import nearest
from staff.classroom.marks import Lateness
from staff.classroom.overrides import mapping
from staff.classroom.written import Problems, Written, read_yaml

FILE = Path(__file__).resolve().parents[1] / "course.yaml"
PERIODS = {"day": timedelta(days=1), "hour": timedelta(hours=1)}
DATE = 'write "2026-10-01 23:59"'


@dataclass(frozen=True)
class Course:
    """When work is due, and the late rule: `percent` for each `period` begun, at most `most`."""

    due: datetime | None = None
    zone: tzinfo = timezone.utc
    file_times: bool = False
    grace: timedelta = timedelta()
    percent: float = 0.0
    period: str = "day"
    most: float = 100.0
    extensions: Mapping[str, datetime] = field(default_factory=dict)

    def lateness(self, due: datetime | None, submitted: datetime | None) -> Lateness | None:
        """How late that is, and what it costs; None if it is on time, or nobody knows."""
        if not due or not submitted:
            return None
        late = submitted.astimezone(timezone.utc) - due.astimezone(timezone.utc)
        if late <= self.grace:
            return None
        begun = math.ceil(late / PERIODS[self.period])
        percent = min(self.most, begun * self.percent)
        return Lateness(f"{span(late)} late: {percent:g} % of the points earned", percent)


def span(duration: timedelta) -> str:
    """A duration in words, such as "1 day 3 h" or "12 min"."""
    minutes = math.ceil(duration.total_seconds() / 60)
    days, hours = minutes // 1440, minutes // 60 % 24
    parts = [f"{days} day{'s' * (days > 1)}" if days else "", f"{hours} h" if hours else ""]
    parts.append(f"{minutes % 60} min" if minutes % 60 and not days else "")
    return " ".join(part for part in parts if part)


def read_course(path: Path, names: Mapping[str, str]) -> Course:
    """Read the settings; UserError with every line that is wrong.

    `names` is what may be written for a submission -> its name.
    """
    problems = Problems(path)
    parts = dict(mapping(read_yaml(path), "the file", problems))
    rule = dict(mapping(parts.pop("late", Written({}, 1)), "late", problems))
    extensions = mapping(parts.pop("extensions", Written({}, 1)), "extensions", problems)
    zone = zone_of(parts.pop("time_zone", Written("UTC", 1)), problems)
    due = parts.pop("due", Written(None, 1))
    file_times = parts.pop("file_times", Written(False, 1))
    if not isinstance(file_times.value, bool):
        problems.add(file_times.line, f"file_times {line(file_times.value)}: use true or false")
    period = rule.pop("per", Written("day", 1))
    if period.value not in PERIODS:
        problems.add(period.line, f"per {line(period.value)}: use {' or '.join(PERIODS)}")
    numbers = {
        key: number_of(key, rule.pop(key, Written(default, 1)), most, problems)
        for key, default, most in (
            ("grace_minutes", 0, 1e6),
            ("percent", 0, 100),
            ("at_most_percent", 100, 100),
        )
    }
    for key, part in {**parts, **rule}.items():
        problems.add(part.line, f"unknown key {line(key)!r}; staff/course.yaml shows all of them")
    own = {}
    for name, part in extensions.items():
        if name not in names:
            problems.add(part.line, f"no submission {line(name)!r}; {nearest(name, names)}")
        elif moment := moment_of(part, zone, problems):
            own[names[name]] = moment
    when = moment_of(due, zone, problems) if due.value is not None else None
    problems.check()
    return Course(
        when,
        zone,
        file_times.value,
        timedelta(minutes=numbers["grace_minutes"]),
        numbers["percent"],
        period.value,
        numbers["at_most_percent"],
        own,
    )


def zone_of(part: Written, problems: Problems) -> tzinfo:
    """A time zone by its IANA name."""
    try:
        return ZoneInfo(str(part.value))
    except (ValueError, OSError, KeyError):
        problems.add(part.line, f"no time zone {line(part.value)!r}; write America/Chicago, say")
        return timezone.utc


def number_of(key: str, part: Written, most: float, problems: Problems) -> float:
    """A number from 0 to `most`."""
    value = part.value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most:
        return float(value)
    problems.add(part.line, f"{key} {line(value)}: give a number from 0 to {most:g}")
    return 0.0


def moment_of(part: Written, zone: tzinfo, problems: Problems) -> datetime | None:
    """A date and time, in `zone` if it names none."""
    found = parse_moment(part.value, zone)
    if not found:
        problems.add(part.line, f"{line(part.value)!r} is not a date and time; {DATE}")
    return found


def parse_moment(value: Any, zone: tzinfo) -> datetime | None:
    """The moment that a date and time says, in `zone` if it names none; None if it is not one."""
    if isinstance(value, str) and len(value.strip()) > 10:
        try:
            value = datetime.fromisoformat(value.strip().replace(" UTC", "+00:00"))
        except ValueError:
            return None
    if not isinstance(value, datetime) or not isinstance(value, date):
        return None
    return value if value.tzinfo else value.replace(tzinfo=zone)
