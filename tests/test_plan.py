"""What the formulas say of a cluster, against numbers that were worked out by hand or published."""

import subprocess
import sys
from dataclasses import replace

from report import published
from report.cluster_model import BERTS, GPUS, Plan, Work, best, computing, memory, parts
from tests.workers import ROOT

import pytest

LARGE = Work(BERTS["bert-large"], GPUS["a100"], 64, 12.5e9, 1024, 512)
DATA = Plan(data=64, pipeline=1, tensor=1, micro=4, zero=0, again=False)


def test_weights_are_the_published_ones():
    assert BERTS["bert-large"].weights == pytest.approx(335_141_888, rel=0.005)
    assert BERTS["10b"].weights == pytest.approx(10e9, rel=0.05)


def test_a_token_costs_six_operations_a_weight():
    short = replace(LARGE, tokens=1)
    flop = computing(short, DATA) * 64 * 312e12 * 0.45
    encoder = 24 * 12 * 1024**2
    assert flop == pytest.approx(6 * encoder * 1024, rel=1e-3)
    assert computing(short, replace(DATA, again=True)) == pytest.approx(
        computing(short, DATA) * 4 / 3
    )


@pytest.mark.parametrize(
    ("zero", "bytes_each"), [(0, 16), (1, 4 + 12 / 64), (2, 2 + 14 / 64), (3, 16 / 64)]
)
def test_state_is_what_the_zero_paper_counts(zero, bytes_each):
    none = replace(LARGE, tokens=0)
    gathered = 4 * 12 * 1024**2 if zero == 3 else 0
    expected = bytes_each * LARGE.bert.weights + gathered
    assert memory(none, replace(DATA, zero=zero)) == expected


def test_the_bubble_and_the_kept_micro_batches():
    plan = Plan(data=16, pipeline=4, tensor=1, micro=4, zero=0, again=False)
    found = parts(LARGE, plan)
    assert plan.micro_batches(LARGE) == 16
    assert found["bubble"] == pytest.approx(found["computing"] * 3 / 16)
    more = memory(LARGE, replace(plan, micro=1)), memory(LARGE, plan)
    assert more[1] - more[0] == 24 / 4 * 4 * 3 * 512 * 1024 * 34  # min(m, P) = 4 of both


def test_only_what_the_backward_pass_does_not_hide_counts():
    network = 2 * 63 / 64 * 2 * LARGE.bert.weights / 12.5e9
    compute = computing(LARGE, DATA)
    m = DATA.micro_batches(LARGE)
    assert parts(LARGE, DATA)["data"] == pytest.approx(network - compute / m * 2 / 3, abs=0.01)
    assert parts(replace(LARGE, link=1e15), DATA)["data"] == 0


def test_the_best_plans_divide_everything_and_fit():
    found = best(LARGE)
    seconds = [sum(parts(LARGE, plan).values()) for plan in found.values()]
    assert seconds == sorted(seconds)
    assert "data" in found
    for plan in found.values():
        assert plan.data * plan.pipeline * plan.tensor == 64
        assert memory(LARGE, plan) < 80e9
    small = best(replace(LARGE, gpu=replace(GPUS["a100"], memory=1.5e9)))
    assert small["data"].zero == 3


def test_fast_links_reproduce_the_published_times_and_slow_ones_do_not():
    off = {}
    for gbit in (100, 800):
        hours, _ = published.predicted(gbit / 8 * 1e9, 1.0)
        off[gbit] = max(abs(hours[n] / published.HOURS[n] - 1) for n in hours)
    assert off[800] < 0.04 < 0.15 < off[100]
    assert published.efficiency(published.HOURS) == pytest.approx(0.708, abs=1e-3)
    assert published.efficiency(published.SEED_HOURS) == pytest.approx(0.946, abs=1e-3)


def test_the_command_says_what_cannot_be_divided():
    command = [sys.executable, "-m", "report", "plan", "--gpus", "7", "--batch", "64"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "fits no split of 7 x A100 80 GB with --batch 64" in done.stderr
    assert "Traceback" not in done.stderr
