"""Tells the machines of runs apart: several may have the same host name and processor."""

import re
from collections.abc import Iterable


def identifier(facts: dict) -> str:
    """What tells the machine of a record from others of its name; "" if nothing does."""
    return re.sub(r"\W", "", str(facts.get("machine_id") or ""))[:12]


def names_of(machines: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """The name to show for each (name, identifier): with it, where several share a name.

    Records without an identifier count as another machine than those that have one.
    """
    machines = set(machines)
    numbers: dict[str, set[str]] = {}
    for name, number in machines:
        numbers.setdefault(name, set()).add(number)
    several = {name for name, found in numbers.items() if len(found) > 1}
    return {
        (name, number): f"{name} #{number or 'unknown'}" if name in several else name
        for name, number in machines
    }


def counted_as_one(runs: Iterable[tuple[str, str, str]]) -> list[str]:
    """A line for each machine whose runs, in several places, have no identifier: it may be several.

    `runs` are (name of the run, machine, identifier).
    """
    places: dict[str, set[str]] = {}
    for run, machine, number in runs:
        if not number:
            places.setdefault(machine, set()).add(re.split("[/:]", run)[0])
    lines = []
    for machine, found in sorted(places.items()):
        if len(found) > 1:
            some = ", ".join(sorted(found)[:3]) + (", ..." if len(found) > 3 else "")
            lines.append(f"{machine}: in {len(found)} places ({some})")
    return lines
