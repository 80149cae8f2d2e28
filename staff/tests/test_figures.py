"""Figures and trace shares, against the records that they come from."""

import dataclasses
import itertools
import json
import re
from pathlib import Path

from cluster.launch import launch
from common.errors import UserError
from common.record.format import PHASES
from report import compare, figures, style, traces
from report.runs import load_run, load_runs

import pytest
from matplotlib.text import Text

ROOT = Path(__file__).parents[2]


def make_run(folder, task, losses, traffic=None, batch=16, metrics=(), memory=()):
    """A run folder: two ranks, of which the second takes twice the time."""
    folder.mkdir()
    facts = {
        "format": 2,
        "glue_task": "RTE",
        "task": task,
        "world_size": 2,
        "end": "now",
        "arguments": {"model_name_or_path": "tiny"},
        "host": "here",
        "processor": "a CPU",
        "cores": 2,
        "git_commit": "0123456789abcdef",
        "versions": {"torch": "2"},
        "gradient_bytes": 90,
        "metrics": list(metrics),
        "examples": {"train": 64, "dev": 8},
    }
    (folder / "run.json").write_text(json.dumps(facts))
    for rank in range(2):
        lines = []
        for i, loss in enumerate(losses):
            seconds = {
                phase: (rank + 1) * (n + 1) * (1 + 9 * (i == 0)) / 1000
                for n, phase in enumerate(PHASES)
            }
            seconds["total"] = sum(seconds.values())
            lines.append(
                {
                    "step": i + 1,
                    "epoch": 1,
                    "loss": loss + rank,
                    "examples": batch // 2,
                    "tokens": 10,
                    "seconds": seconds,
                }
            )
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"steps.rank{rank}.jsonl").write_text(text)
    for rank, (weights, gradients, state) in enumerate(memory):
        held = {"weights": weights, "gradients": gradients, "optimizer_state": state}
        held |= {"activations": 7, "peak": 10**9}
        (folder / f"memory.rank{rank}.json").write_text(json.dumps(held))
    if traffic:
        method, dtype, expected, measured = traffic
        counts = dict.fromkeys(("payload", "sent_bytes", "received_bytes"), 1)
        counts |= {"expected": expected, "measured": measured}
        traffic = {"method": method, "dtype": dtype, "per_iteration": counts}
        traffic |= {"iterations": [], "epochs": []}
        (folder / "traffic.rank0.json").write_text(json.dumps(traffic))
    return load_run(folder)


@pytest.fixture
def runs(tmp_path):
    scores = [{"epoch": 1, "acc": 0.5}, {"epoch": 2, "acc": 0.75}]
    return [
        make_run(tmp_path / "one", "task1", [0.9, 0.8, 0.7], metrics=scores),
        make_run(tmp_path / "two", "task2a", [0.9, 0.8, 0.6], memory=[(90, 90, 180)] * 2),
        make_run(tmp_path / "b16", "task4", [0.9, 0.8], ("2b", "float32", 8e6, 9e6)),
        make_run(tmp_path / "b32", "task4", [0.9, 0.8], ("2b", "float32", 8e6, 8e6), batch=32),
    ]


def lines_of(axis):
    return [list(map(float, line.get_ydata())) for line in axis.get_lines()]


def test_losses_and_their_difference_to_the_first(runs):
    upper, lower = figures.draw_losses(runs[:2]).axes
    assert lines_of(upper) == [pytest.approx(run.losses) for run in runs[:2]]
    [gaps] = lines_of(lower)
    assert gaps == pytest.approx([float("nan"), float("nan"), 0.1], nan_ok=True)
    assert lower.get_yscale() == "log"
    assert [text.get_text() for text in upper.get_legend().get_texts()] == ["task 1", "task 2a"]


def test_differences_within_one_power_of_ten_have_labels(tmp_path):
    near = [0.7 + gap for gap in (4e-8, 5e-8, 0)]
    runs = [
        make_run(tmp_path / name, task, losses)
        for name, task, losses in (("a", "task1", [0.7] * 3), ("b", "task2a", near))
    ]
    figure = figures.draw_losses(runs)
    figure.canvas.draw()
    lower = figure.axes[1]
    assert lower.get_ylim() == pytest.approx((1e-8, 1e-7))
    assert {"1e\u221208", "1e\u221207"} <= {text.get_text() for text in lower.get_yticklabels()}


def test_phases_are_means_without_the_first_iteration(runs):
    [axis] = figures.draw_phases(runs[:2]).axes
    heights = [bar.get_height() for bars in axis.containers for bar in bars]
    assert heights == pytest.approx([1.5 * n for n in (1, 1, 2, 2, 3, 3, 4, 4, 5, 5)])
    assert "milliseconds" in axis.get_ylabel()


def test_the_discarded_iteration_is_marked(runs):
    [axis] = figures.draw_iterations(runs[:1]).axes
    marked = [
        line for line in axis.get_lines() if line.get_marker() == "x" and len(line.get_ydata())
    ]
    assert list(marked[0].get_ydata()) == pytest.approx([150])
    spread = [line for line in axis.get_lines() if line.get_marker() == "."]
    assert list(spread[0].get_ydata()) == pytest.approx([15, 15])


def test_traffic_expected_beside_measured(runs):
    [axis] = figures.draw_traffic(runs).axes
    heights = [bar.get_height() for bars in axis.containers for bar in bars]
    assert heights == [8, 8, 9, 8]
    assert figures.draw_traffic(runs[:2]) is None


def test_batches_by_total_size(runs):
    left, right = figures.draw_batches(runs).axes
    assert list(left.get_lines()[0].get_xdata()) == [16, 32]
    assert lines_of(right) == [pytest.approx([9 * 64 / 16, 8 * 64 / 32])]
    assert figures.draw_batches(runs[:3]) is None


def test_accuracy_after_every_epoch(runs):
    [axis] = figures.draw_accuracy(runs).axes
    assert lines_of(axis) == [[0.5, 0.75]]
    assert figures.draw_accuracy(runs[1:]) is None


def test_memory_is_drawn_beside_the_formula(tmp_path):
    held = {"task2b": (90, 90, 180), "zero1": (90, 90, 92), "fsdp": (45, 46, 92)}
    made = [
        make_run(tmp_path / task, task, [0.9], memory=[one, (1, 1, 1)])
        for task, one in held.items()
    ]
    [axis] = figures.draw_memory(made).axes
    heights = [[bar.get_height() * 1e6 for bar in bars] for bars in axis.containers]
    assert heights == [pytest.approx(each) for each in zip(*held.values(), strict=True)]
    formulas = [line.get_ydata()[0] * 1e6 for line in axis.get_lines()]  # of 90 // 4 weights
    assert formulas == pytest.approx([16 * 22, 8 * 22 + 4 * 22, 8 * 22])
    assert figures.draw_memory([make_run(tmp_path / "none", "zero1", [0.9])]) is None


def test_every_figure_says_where_it_comes_from(runs, tmp_path, capsys):
    folders = [str(run.folder) for run in runs]
    assert figures.main([*folders, "--output_dir", str(tmp_path / "figures")]) == 0
    assert "left out" not in capsys.readouterr().out
    for name in figures.FIGURES:
        assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / "figures" / f"{name}.svg").stat().st_size > 1000
    source = figures.source_of(runs)
    for part in ("one, two, b16, b32", "here (a CPU, 2 cores)", "0123456789ab"):
        assert part in source


def test_what_is_left_out_is_listed(runs, tmp_path, capsys):
    assert figures.main([str(runs[1].folder), "--output_dir", str(tmp_path / "figures")]) == 0
    left_out = re.findall(r"left out, .*: (\w+)", capsys.readouterr().out)
    assert left_out == ["traffic", "batches", "accuracy"]


def too_small_or_touching(figure):
    """Texts of a figure below 7 points, and pairs of an axis's labels that touch."""
    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    found = [text.get_text() for text in texts if text.get_fontsize() < 7]
    for axis in [each for axes in figure.axes for each in (axes.xaxis, axes.yaxis)]:
        labels = [label for label in axis.get_ticklabels() if label.get_text()]
        for these, those in itertools.pairwise(labels):
            one, other = these.get_window_extent(), those.get_window_extent()
            if these.get_rotation() == 0 and one.overlaps(other):
                found.append((these.get_text(), those.get_text()))
    return found


def test_figures_can_be_read_in_print(runs, tmp_path):
    """At 7 points or more, in one typeface, at the width that they are printed at."""
    many = [dataclasses.replace(run, folder=Path(f"a run {n}")) for n in range(6) for run in runs]
    for name, drawing in figures.FIGURES.items():
        for shown in (runs, many):
            figure = drawing(shown)
            assert figure.get_figwidth() == style.WIDTH, name
            assert not too_small_or_touching(figure), name
            fonts = {text.get_fontfamily()[0] for text in figure.findobj(Text)}
            assert fonts == {style.FONT}, name
            style.save(figure, name, figures.source_of(shown), tmp_path)
    compare.picture(runs[:2], tmp_path / "picture.png", runs[2:])
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def event(name, start, seconds):
    return {"ph": "X", "name": name, "ts": 1e6 * start, "dur": 1e6 * seconds}


def test_shares_of_communication():
    events = [
        event("ProfilerStep#1", 0, 10),
        event("autograd::engine::evaluate_function: A", 2, 2),
        event("autograd::engine::evaluate_function: B", 3, 3),
        event("gloo:all_reduce", 5, 2),
        event("gloo:all_reduce", 6, 2),
        event("aten::mm", 0, 10),
        event("ProfilerStep#2", 10, 5),
        event("gloo:gather", 14, 3),
    ]
    first, second = traces.shares(events)
    assert first == {"step": 10, "communication": 3, "hidden": 1}
    assert second == {"step": 5, "communication": 1, "hidden": 0}


def test_the_trace_of_a_run_is_summarized(tmp_path, capsys):
    assert traces.main([str(tmp_path)]) == 2
    assert "run the task with --trace 3" in capsys.readouterr().err
    for rank in (0, 1, 10):
        events = [event("ProfilerStep#1", 0, 4), event("gloo:all_reduce", 1, 1)]
        (tmp_path / f"trace.rank{rank}.json").write_text(json.dumps({"traceEvents": events}))
    assert traces.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[1:] for line in printed.splitlines() if "rank " in line] == [
        [rank, "1", "4000.0", "1000.0", "25%", "0%"] for rank in ("0", "1", "10")
    ]
    (tmp_path / "trace.rank0.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read as a trace"):
        traces.summary(tmp_path)


@pytest.mark.slow
def test_a_traced_run_of_two_workers(tmp_path):
    """The steps after the first, with DDP's collectives in them."""
    command = f"""{ROOT}/task3/run_glue.py --model_type bert --model_name_or_path tiny --do_train
        --task_name RTE --data_dir {ROOT}/sample_data/RTE --per_gpu_train_batch_size 4 --no_cuda
        --max_seq_length 16 --max_steps 5 --trace 2 --output_dir {tmp_path}""".split()
    result = launch(command, 2, quiet=True)
    assert result.code == 0, result.summary()
    for rank in range(2):
        events = traces.load_trace(tmp_path / f"trace.rank{rank}.json")
        steps = [e["name"] for e in events if e["name"].startswith("ProfilerStep")]
        assert sorted(set(steps)) == ["ProfilerStep#1", "ProfilerStep#2"]
        for step in traces.shares(events):
            assert 0 < step["communication"] < step["step"]
            assert 0 <= step["hidden"] <= step["communication"]
    assert [row["steps"] for row in traces.summary(tmp_path)] == [2, 2]
    assert not list(tmp_path.glob("*.part"))


def test_a_folder_of_runs_stands_for_the_runs_in_it(tmp_path):
    whole = [make_run(tmp_path / name, "task1", [0.7] * 3) for name in ("a", "b")]
    found = load_runs([tmp_path, whole[0].folder])
    assert [run.folder.name for run in found] == ["a", "b", "a"]
    with pytest.raises(UserError, match=r"no run.json, so it is not a run folder"):
        load_runs([tmp_path / "c"])
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(UserError, match=r"sweep.json is a file; give the folder of a run"):
        load_runs([tmp_path / "sweep.json"])


def test_settings_that_make_losses_differ_are_named(tmp_path):
    runs = [
        make_run(tmp_path / name, "task1", [0.7] * n) for name, n in (("a", 3), ("b", 3), ("c", 5))
    ]
    assert compare.unlike(runs[:2]) == []
    runs[1].facts["arguments"]["seed"] = 7
    (steps, seed) = compare.unlike(runs)
    assert steps.endswith(": 3, 3, 5")
    assert "learning rate" in steps
    assert seed == "  losses differ with --seed: None, 7, None"
    assert seed in compare.side_by_side(runs)
