"""What the ranks printed is kept with the report: its end, without old progress bars."""

from grading.checks.reader import ending, read_text
from grading.results import Report


def test_the_end_of_an_output_is_kept_without_the_progress_bars_earlier_states():
    bar = "".join(f"\r {n}%|##" for n in range(100))
    assert ending(f"first\n{bar}\nlast\x1b[31m\r\n") == "first\n 99%|##\nlast\x1b[31m\n"
    long = ending("x" * 50_000 + "\nKeyError: 'gone'\n")
    assert long.startswith("... x")
    assert long.endswith("x\nKeyError: 'gone'\n")
    assert len(long) < 4100


def test_a_long_output_is_read_at_its_start_and_at_its_end(tmp_path):
    (tmp_path / "0.err").write_bytes(b"a" + b"-" * 5000 + b"KeyError")
    assert read_text(tmp_path / "0.err", 1600) == "a" + "-" * 1599 + "-" * 92 + "KeyError"
    assert read_text(tmp_path / "0.err", 5009) == "a" + "-" * 5000 + "KeyError"
    assert read_text(tmp_path / "0.err", 5000) == "a" + "-" * 5000 + "KeyError"


def test_outputs_are_part_of_a_report():
    outputs = {"task2a/plain": [{"out": "loss 0.7\n", "err": ""}, {"out": "", "err": "Error"}]}
    report = Report.from_json(Report("one", outputs=outputs).to_json())
    assert report.outputs == outputs
