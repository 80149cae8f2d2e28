"""The reader of run folders: records of this format, of the one before, and broken ones."""

import json
import os

from common.errors import UserError
from common.record.format import FORMAT
from common.units import bits_per_second
from report.runs import load_run

import pytest

STEP = {"step": 1, "epoch": 1, "loss": 0.5, "examples": 4, "tokens": 9, "seconds": {"total": 1.0}}
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
    facts = {"world_size": 1, "end": "now", "metrics": [{"epoch": 1, "acc": 0.5}], **facts}
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
    arguments = {"task_name": "RTE", "strategy": "task4"}
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
