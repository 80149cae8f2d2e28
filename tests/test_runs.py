"""The reader of run folders: records of this format, of the one before, and broken ones."""

import copy
import json
import os

from common.errors import UserError
from common.record.format import FORMAT
from common.units import bits_per_second
from report.compare import side_by_side, traffic_table
from report.figures import names_of, source_of, total_batch
from report.runs import load_run
from report.times import spread, timed

import pytest

SECONDS = dict.fromkeys(("data", "forward", "backward", "sync", "update", "total"), 0.5)
STEP = {"step": 1, "epoch": 1, "loss": 0.5, "examples": 4, "tokens": 9, "seconds": SECONDS}
FACTS = {
    "world_size": 1,
    "end": "now",
    "task": "task4",
    "glue_task": "RTE",
    "arguments": {"model_name_or_path": "tiny", "seed": 42},
    "metrics": [{"epoch": 1, "acc": 0.5}],
    "versions": {"torch": "2"},
    "git_commit": None,
    "host": "here",
    "processor": "some",
    "cores": 2,
    "gradient_bytes": 10,
    "examples": {"train": 4, "dev": 2},
}
OLD_COUNTS = {
    "handed": 10,
    "rank_sends": 20,
    "rank_receives": 30,
    "expected": 40,
    "counted": 50,
}
COUNTS = {
    "payload": 10,
    "sent_bytes": 20,
    "received_bytes": 30,
    "expected": 40,
    "measured": 50,
}


def write_run(folder, facts, traffic):
    """A run folder of one rank and one step."""
    folder.mkdir()
    facts = {**FACTS, **facts}
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "steps.rank0.jsonl").write_text(json.dumps(STEP) + "\n")
    (folder / "traffic.rank0.json").write_text(json.dumps(traffic))
    return folder


def traffic_of(counts):
    """The traffic of one iteration with these byte counts."""
    return {
        "method": "2b",
        "dtype": "float32",
        "iterations": [{"step": 1, "epoch": 1, **counts}],
        "epochs": [{"epoch": 1, **counts}],
        "per_iteration": counts,
    }


def test_format_1_is_read_as_format_2(tmp_path):
    arguments = {"task_name": "RTE", "strategy": "task4", "model_name_or_path": "tiny"}
    old = {"format": 1, "task": "RTE", "strategy": "task4", "arguments": arguments}
    new = {"format": 2, "glue_task": "RTE", "task": "task4", "arguments": arguments}
    before = load_run(write_run(tmp_path / "old", old, traffic_of(OLD_COUNTS)))
    after = load_run(write_run(tmp_path / "new", new, traffic_of(COUNTS)))
    assert before.name == after.name == "4: 2b"
    assert before.facts["glue_task"] == "RTE"
    assert before.facts["arguments"] == arguments
    assert {**before.facts, "format": 2} == after.facts
    assert before.traffic == after.traffic
    assert before.steps == after.steps == [[STEP]]


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"format": FORMAT + 1}, f"have format {FORMAT + 1}, but this version reads up to"),
        ({"format": FORMAT, "end": None}, "did not finish; run it again"),
        ({}, "its records cannot be read"),
    ],
)
def test_what_cannot_be_read_is_a_user_error(tmp_path, facts, says):
    with pytest.raises(UserError, match=says):
        load_run(write_run(tmp_path / "run", facts, traffic_of(COUNTS)))


def test_a_folder_that_is_not_a_run_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match=r"contains no run\.json, so it is not a run folder"):
        load_run(tmp_path)


@pytest.mark.parametrize("name", ["run.json", "steps.rank0.jsonl"])
def test_a_pipe_in_place_of_a_record_is_not_waited_for(tmp_path, name):
    folder = tmp_path / "run"
    write_run(folder, {"format": FORMAT, "end": "now", "world_size": 1}, COUNTS)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(UserError, match=r"cannot be read|contains no"):
        load_run(folder)


@pytest.mark.parametrize("facts", [[], "text", 7, None, {"format": FORMAT, "world_size": 10**9}])
def test_facts_of_another_shape_are_a_user_error(tmp_path, facts):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(facts))
    with pytest.raises(UserError, match=r"cannot be read|contains no"):
        load_run(folder)


@pytest.mark.parametrize("rate", ["infgbit", "nangbit", "1e30gbit", "1kbit", "fast"])
def test_a_rate_that_no_link_has_is_a_user_error(rate):
    with pytest.raises(UserError, match=f"rate '{rate}': write it as"):
        bits_per_second(rate)


WRONG = (None, "7", "\x1b[31m", [], [[]], {}, {"\x1b": 1}, True, -1, 0, 1e9, 10**400, float("nan"))


def variants(value):
    """A JSON value with one part of it, or one name, replaced by something else."""
    yield from WRONG
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items if isinstance(value, (dict, list)) else ():
        for other in variants(inner) if isinstance(inner, (dict, list)) else WRONG:
            changed = copy.copy(value)
            changed[key] = other
            yield changed
    for key in value:
        if isinstance(value, dict):
            yield {name: inner for name, inner in value.items() if name != key}


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("run.json", {"format": FORMAT, **FACTS}),
        ("steps.rank0.jsonl", STEP),
        ("traffic.rank0.json", traffic_of(COUNTS)),
    ],
)
def test_whatever_a_record_holds_is_read_or_refused(tmp_path, name, record):
    whole = write_run(tmp_path / "whole", {"format": FORMAT}, traffic_of(COUNTS))
    folder = write_run(tmp_path / "run", {"format": FORMAT}, traffic_of(COUNTS))
    steps = (json.dumps(STEP) + "\n") * 2
    for run in (whole, folder):
        (run / "steps.rank0.jsonl").write_text(steps)
    refusals = []
    for changed in variants(record):
        lines = [record, changed] if name.startswith("steps") else [changed]
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        try:
            runs = [load_run(whole), load_run(folder)]
        except UserError as error:
            refusals.append(str(error))
            continue
        text = [side_by_side(runs), traffic_table(runs), *names_of(runs), source_of(runs)]
        text += [str(timed(runs[1])), *(spread(runs[1]) if timed(runs[1]) else [])]
        text.append(str(total_batch(runs[1])))
        assert all(line.isprintable() for line in "\n".join(text).splitlines()), changed
    assert refusals
    assert all(line.isprintable() for line in refusals)
