"""Times of a class: statistics, records that are broken or hostile, and the page in a browser."""

import csv
import html
import json
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from staff.timing import compare, rounds, timings
from staff.timing.class_runs import load_all

import numpy
import psutil
import pytest

ROOT = Path(__file__).parents[2]
HOSTILE = "<script>document.title='taken'</script><img src=x onerror=alert(1)>"


def make_run(folder, task, median, host="here", steps=41, workers=2, sync=0.1, seed=0, **facts):
    """A run of so many steps whose times spread around a median; its first step takes 9 s."""
    folder.mkdir(parents=True)
    facts = {
        "format": 2,
        "task": f"task{task}",
        "world_size": workers,
        "end": "now",
        "host": host,
        "processor": "a CPU",
        "cores": 4,
        "threads": 1,
        "hosts": [host] * workers,
        "iterations_timed": steps - 1,
        "arguments": {"model_name_or_path": "models/tiny", "max_seq_length": 128},
        **facts,
    }
    (folder / "run.json").write_text(json.dumps(facts))
    rng = numpy.random.default_rng(seed)
    totals = [9.0, *(median * rng.uniform(0.95, 1.05, steps - 1))]
    lines = [
        json.dumps(
            {
                "step": i + 1,
                "epoch": 1,
                "loss": 0.5,
                "examples": 64 // workers,
                "tokens": 9,
                "seconds": {"total": total, "sync": sync if task != "1" else 0.0},
            }
        )
        for i, total in enumerate(totals)
    ]
    for rank in range(workers):
        (folder / f"steps.rank{rank}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def run(*paths, out):
    assert timings.main([*map(str, paths), "--output_dir", str(out)]) == 0
    with (out / "timings.csv").open(newline="") as file:
        return {Path(row["name"]).name: row for row in csv.DictReader(file)}


def test_each_machine_has_its_own_measure(tmp_path, capsys):
    for host, factor in (("slow", 10), ("quick", 1)):
        make_run(tmp_path / host / "one", "1", 1.0 * factor, host, workers=1)
        make_run(tmp_path / host / "two", "2a", 1.5 * factor, host, sync=0.6 * factor, seed=1)
        flat = {"machine": f"{host} (a CPU)", "seconds": {"flat all_reduce": [0.2 * factor] * 3}}
        (tmp_path / host / "sync_times.json").write_text(json.dumps(flat))
    rows, skipped, flat = load_all([tmp_path])
    assert not skipped
    for row in compare.compare(rows, flat):
        if row["task"] == "2a":
            assert row["ratio"] == pytest.approx(1.5, rel=0.03)
            assert row["interval"][0] < row["ratio"] < row["interval"][1]
            assert row["verdict"] == "slower"
            assert row["flat"] == pytest.approx(3)
            assert row["iterations"] == 40  # without the first
    run(tmp_path, out=tmp_path / "out")
    printed = capsys.readouterr().out
    assert "machines:\n  quick (a CPU)\n  slow (a CPU)\n" in printed
    assert re.search(r"2a: 1\.(4|5)\d+ .*, 2 runs: slower", printed)


def test_machines_of_one_name_are_told_apart_by_their_number(tmp_path, capsys):
    for who, factor in (("ann", 1), ("bob", 5)):
        facts = {"host": "ubuntu", "machine_id": f"{who}-{factor}", "seed": factor}
        make_run(tmp_path / who / "task1", "1", 1.0 * factor, workers=1, **facts)
        make_run(tmp_path / who / "task2b", "2b", 1.5 * factor, sync=0.4 * factor, **facts)
        flat = {"machine": "ubuntu (a CPU)", "machine_id": f"{who}-{factor}"}
        flat["seconds"] = {"flat all_reduce": [0.2 * factor] * 3}
        (tmp_path / who / "task1" / "sync_times.json").write_text(json.dumps(flat))
    rows, _, flat = load_all([tmp_path])
    ratios = [row for row in compare.compare(rows, flat) if row["task"] == "2b"]
    assert [row["ratio"] for row in ratios] == pytest.approx([1.5, 1.5], rel=0.03)
    assert [row["flat"] for row in ratios] == pytest.approx([2, 2])
    run(tmp_path, out=tmp_path / "out")
    printed = capsys.readouterr().out
    assert "machines:\n  ubuntu (a CPU) #ann1\n  ubuntu (a CPU) #bob5\n" in printed
    assert timings.POOLED not in printed


def test_machines_that_records_cannot_tell_apart_are_listed(tmp_path, capsys):
    for who in ("ann", "bob"):
        make_run(tmp_path / who / "task1", "1", 1.0, host="ubuntu", workers=1)
        make_run(tmp_path / who / "task2b", "2b", 1.0, host=who)
    make_run(tmp_path / "cid" / "task1", "1", 1.0, host="ubuntu", machine_id="c1", workers=1)
    run(tmp_path, out=tmp_path / "out")
    line = "ubuntu (a CPU) #unknown: in 2 places (ann, bob)"
    assert f"{timings.POOLED}\n  {line}\n" in capsys.readouterr().out
    page = html.unescape((tmp_path / "out" / "timings.html").read_text())
    assert json.dumps([line]) in page


def test_zips_in_folders_are_read_and_names_hold_no_machine_paths(tmp_path, capsys):
    made = tmp_path / "made"
    make_run(made / "task1", "1", 1.0, workers=1)
    make_run(made / "task2b", "2b", 1.2, all_reduce_seconds=0.05)
    folder = tmp_path / "class"
    (folder / "ada").mkdir(parents=True)
    with zipfile.ZipFile(folder / "ada" / "work.zip", "w") as archive:
        for file in made.rglob("*.json*"):
            archive.write(file, file.relative_to(made))
    make_run(folder / "bob" / "task2b", "2b", 1.2, host="elsewhere")
    (folder / "eve").mkdir()
    (folder / "eve" / "cut.zip").write_bytes(b"PK")
    found = run(folder, out=tmp_path / "out")
    names = ["ada/work.zip:task1", "ada/work.zip:task2b", "bob/task2b"]
    assert [row["name"] for row in found.values()] == names
    assert float(found["work.zip:task2b"]["flat"]) == pytest.approx(2)  # 0.1 s of sync
    why = {name: row["flags"] for name, row in found.items()}
    assert [why.pop("task2b"), *why.values()] == [
        "no comparable run of task 1 on its machine",
        "",
        "",
    ]
    assert {row["verdict"] for row in found.values()} == {"baseline", "slower", ""}
    printed = capsys.readouterr().out
    assert "eve/cut.zip: not the records of a run" in printed
    page = (tmp_path / "out" / "timings.html").read_text()
    table = (tmp_path / "out" / "timings.csv").read_text()
    assert str(tmp_path) not in printed.split("written:")[0] + page + table
    for head in ("median (s)", "spread low (s)", "spread high (s)", "interval low"):
        assert f",{head}," in table


def test_the_records_in_what_students_pack_are_read(tmp_path):
    made = make_run(tmp_path / "made" / "task1", "1", 1.0, workers=1)
    (tmp_path / "class").mkdir()
    with zipfile.ZipFile(tmp_path / "class" / "ann1_Ann_Lee.zip", "w") as archive:
        for file in made.iterdir():  # as `python -m grading pack` places them
            archive.write(file, Path("ann1_Ann_Lee", "runs", "task1", file.name))
    (found,) = run(tmp_path / "class", out=tmp_path / "out").values()
    assert found["name"] == "ann1_Ann_Lee.zip:runs/task1"


def rows_of(*intervals):
    """Rows of comparable runs with these intervals, and the middle of each as the ratio."""
    return [
        {"task": "2b", "flags": "", "ratio": (low + high) / 2, "interval": [low, high]}
        for low, high in intervals
    ]


@pytest.mark.parametrize(
    ("intervals", "says"),
    [
        ([(0.9, 1.05), (0.95, 1.01)], "indistinguishable"),  # both middles are below 1
        ([(0.9, 1.05)], "indistinguishable"),
        ([(0.9, 1.05), (0.7, 0.8), (1.0, 1.2)], "indistinguishable"),
        ([(1.1, 1.2)], "slower"),
        ([(1.1, 1.2), (1.1, 1.3), (1.2, 1.3)], "slower"),
        ([(0.8, 0.9), (0.7, 0.8)], "faster"),
        ([(float("nan"), float("nan"))], ""),
    ],
)
def test_the_summary_agrees_with_its_runs(intervals, says):
    [task] = compare.by_task(rows_of(*intervals))
    assert task["verdict"] == says


def test_an_interval_holds_the_truth_and_shows_whether_there_is_a_difference():
    rng = numpy.random.default_rng(5)
    holds = 0
    for _ in range(60):
        these, those = rng.normal(1.0, 0.1, 40), rng.normal(1.0, 0.1, 40)
        _, low, high = compare.ratio_of(these, those)
        holds += low <= 1 <= high
    assert 52 <= holds <= 60  # 57 on average
    assert compare.verdict(0.97, 1.02) == "indistinguishable"
    assert compare.verdict(1.01, 1.02) == "slower"
    assert compare.verdict(0.8, 0.9) == "faster"
    assert compare.verdict(float("nan"), float("nan")) == ""


def test_rounds_are_paired(tmp_path):
    for number, weather in enumerate((1.0, 3.0, 0.5), 1):  # what else the machine did
        folder = tmp_path / f"round{number}"
        make_run(folder / "task1", "1", weather, workers=1)
        make_run(folder / "task2b", "2b", 1.2 * weather, seed=number)
    runs, _, flat = load_all([tmp_path])
    rows = compare.compare(runs, flat)
    ratios = [row["ratio"] for row in rows if row["task"] == "2b"]
    assert ratios == pytest.approx([1.2] * 3, rel=0.03)
    [task] = compare.by_task(rows)
    assert (task["task"], task["runs"], task["verdict"]) == ("2b", 3, "slower")


def test_runs_that_cannot_be_compared_are_flagged(tmp_path):
    for n in range(3):
        make_run(tmp_path / f"one{n}", "1", 1.0, workers=1)
    make_run(tmp_path / "good", "2a", 1.5)
    make_run(tmp_path / "few", "2a", 1.5, steps=10)
    make_run(tmp_path / "first", "2a", 1.5, iterations_timed=41)
    make_run(tmp_path / "crowd", "2a", 1.5, threads=4)
    other = {"model_name_or_path": "bert", "max_seq_length": 64}
    make_run(tmp_path / "other", "2a", 1.5, arguments=other)
    half = make_run(tmp_path / "half", "2a", 1.5)
    for rank in range(2):
        path = half / f"steps.rank{rank}.jsonl"
        path.write_text(path.read_text().replace('"examples": 32', '"examples": 16'))
    found = run(tmp_path, out=tmp_path / "out")
    flags = {name: row["flags"] for name, row in found.items()}
    assert flags == {
        "one0": "",
        "one1": "",
        "one2": "",
        "good": "",
        "few": "10 iterations, not 40",
        "first": "its first iteration is included in its own mean",
        "crowd": "8 threads on 4 cores",
        "other": "model bert, not tiny; length 64, not 128",
        "half": "total batch 32, not 64",
    }
    runs, _, flat = load_all([tmp_path])
    [task] = compare.by_task(compare.compare(runs, flat))
    assert task["runs"] == 1


def broken_runs(folder):
    """Name -> a folder or zip with something wrong in it."""
    good = make_run(folder / "good", "1", 1.0, workers=1)
    names = [
        "truncated",
        "huge",
        "nan",
        "newer",
        "unfinished",
        "no steps",
        "not json",
        "deep",
        "list",
    ]
    made = {name: Path(shutil.copytree(good, folder / name)) for name in names}
    steps = {name: path / "steps.rank0.jsonl" for name, path in made.items()}
    steps["truncated"].write_text(steps["truncated"].read_text()[:-30])
    with steps["huge"].open("w") as file:
        file.write('{"loss": "' + "x" * 100_000_000 + '"}\n')
    steps["nan"].write_text(steps["nan"].read_text().replace('"total": 9.0', '"total": NaN'))
    (made["newer"] / "run.json").write_text('{"format": 99}')
    (made["unfinished"] / "run.json").write_text('{"format": 1, "end": null}')
    steps["no steps"].unlink()
    (made["not json"] / "run.json").write_bytes(b"\xff\x00")
    (made["deep"] / "run.json").write_text("[" * 200_000)
    (made["list"] / "run.json").write_text("[]")
    (folder / "cut.zip").write_bytes(b"PK\x03\x04 no more")
    made["cut.zip"] = folder / "cut.zip"
    bomb = folder / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/run.json", (good / "run.json").read_text())
        archive.writestr("a/steps.rank0.jsonl", " " * 300_000_000)
    made["bomb.zip"] = bomb
    with zipfile.ZipFile(folder / "good.zip", "w") as archive:
        for file in good.iterdir():
            archive.write(file, f"../../x/{file.name}")  # read where it is, so the path is harmless
    return made


def test_broken_records_are_skipped_and_listed(tmp_path, capsys):
    made = broken_runs(tmp_path / "class")
    places = [tmp_path / "class" / "good", tmp_path / "class" / "good.zip", *made.values()]
    runs, skipped, _ = load_all(places)
    assert len(runs) == 2
    assert runs[0].seconds == pytest.approx(runs[1].seconds)
    reasons = {Path(name.split(":")[0]).name: reason for name, reason in skipped}
    assert reasons.keys() == made.keys()
    for name, says in {
        "huge": "line 1: too long",
        "nan": "line 1: times",
        "newer": "format 99",
        "unfinished": "did not finish",
        "no steps": "No such file",
        "bomb.zip": "too long",
        "list": "not an object",
    }.items():
        assert says in reasons[name], name
    assert timings.main([str(made["list"]), "--output_dir", str(tmp_path / "out")]) == 2
    assert "no run could be read" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def hostile_class(folder):
    """Runs whose texts try to be markup, a formula, and a terminal's commands."""
    make_run(folder / "a good one", "1", 1.0, workers=1)
    make_run(folder / "two", "2a", 1.5, seed=1)
    make_run(folder / "three", "2b", 1.2, seed=2)
    make_run(folder / "four", HOSTILE, 1.2, host=HOSTILE + "</script>\x1b[2J", seed=3)
    make_run(folder / "five", "=1+1", 1.2, host="=cmd|' /C calc'!A0", seed=4)
    (folder / "six").mkdir()
    (folder / "six" / "run.json").write_text(json.dumps({"format": 1, "end": HOSTILE}))
    return folder


def test_what_records_contain_is_inert(tmp_path, capsys):
    found = run(hostile_class(tmp_path / "class"), out=tmp_path / "out")
    assert found["five"]["task"] == "'=1+1"
    assert found["five"]["machine"].startswith("'=cmd")
    assert "\x1b" not in capsys.readouterr().out
    page = (tmp_path / "out" / "timings.html").read_text()
    assert page.count("</script>") == 1  # the page's own
    data = json.loads(html.unescape(re.search(r'data-json="([^"]*)"', page)[1]))
    assert {row["task"] for row in data["rows"]} == {"1", "2a", "2b", HOSTILE[:20], "=1+1"}
    assert "\x1b" not in json.dumps(data, ensure_ascii=False)
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


@pytest.mark.slow
@pytest.mark.skipif(not (BROWSER and DRIVER), reason="no chromium and chromedriver here")
def test_the_page_in_a_browser(tmp_path):
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select

    run(hostile_class(tmp_path / "class"), out=tmp_path / "out")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    try:
        browser.set_page_load_timeout(60)
        browser.get((tmp_path / "out" / "timings.html").as_uri())
        assert browser.title == "Times per iteration"

        def column(number):
            rows = browser.find_elements(By.CSS_SELECTOR, "#runs tbody tr")
            return [row.find_elements(By.TAG_NAME, "td")[number].text for row in rows]

        def heading(key):
            return browser.find_element(By.CSS_SELECTOR, f"button[data-key={key}]")

        assert len(column(0)) == 5
        heading("median").click()
        medians = [float(cell) for cell in column(5)]
        assert medians == sorted(medians)
        heading("median").send_keys(Keys.ENTER)  # by keyboard, and the focus has stayed
        assert [float(cell) for cell in column(5)] == sorted(medians, reverse=True)
        head = heading("median").find_element(By.XPATH, "..")
        assert head.get_attribute("aria-sort") == "descending"
        focused = browser.switch_to.active_element
        assert focused.get_attribute("data-key") == "median"

        browser.find_element(By.ID, "task").send_keys("2a")
        assert column(1) == ["2a"]
        assert browser.find_element(By.ID, "count").text == "1 of 5 runs"
        assert browser.find_elements(By.CSS_SELECTOR, "#plot svg circle")
        assert HOSTILE[:20] in browser.find_element(By.ID, "task").text
        assert "six" in browser.find_element(By.ID, "skipped").text
        assert browser.title == "Times per iteration"
        for width, scheme in ((390, "light"), (1280, "dark")):
            size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            wide = "return document.documentElement.scrollWidth > innerWidth"
            assert not browser.execute_script(wide), width
            paper = "return getComputedStyle(document.body).backgroundColor"
            assert (browser.execute_script(paper) == "rgb(255, 255, 255)") == (scheme == "light")
        Select(browser.find_element(By.ID, "task")).select_by_value("")
        cells = browser.find_elements(By.CSS_SELECTOR, "#runs tbody td:first-child")
        assert "a good one" in {cell.get_attribute("title") for cell in cells}
        scroll = """const box = document.querySelector("#runs .scroll");
            box.style.maxHeight = "90px"; box.style.width = "200px";
            box.scrollTo(150, 60);
            const at = e => e.getBoundingClientRect(), head = box.querySelector("thead th");
            return [box.scrollLeft, at(head).top - at(box).top, at(head).left - at(box).left,
                    at(box.querySelector("tbody td")).left - at(box).left]"""
        moved, *stuck = browser.execute_script(scroll)
        assert moved > 100
        assert stuck == [0, 0, 0]
        assert browser.get_log("browser") == []
    finally:
        browser.quit()


@pytest.mark.slow
def test_a_class_takes_little_memory(tmp_path):
    """How long it takes is measured elsewhere; here, that it is done, in less than 1 GB."""
    first = make_run(tmp_path / "class" / "0", "1", 1.0, steps=117, workers=4)
    for number in range(1, 300):
        shutil.copytree(first, tmp_path / "class" / str(number))
    command = [sys.executable, "-m", "staff.timing.timings", str(tmp_path / "class")]
    process = subprocess.Popen(
        [*command, "--output_dir", str(tmp_path / "out")], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    most, deadline = 0, time.monotonic() + 120
    while process.poll() is None:
        assert time.monotonic() < deadline
        try:
            most = max(most, psutil.Process(process.pid).memory_info().rss)
        except psutil.Error:
            break
        time.sleep(0.02)
    assert process.wait() == 0
    assert 10e6 < most < 1e9


@pytest.mark.slow
def test_interleaved_rounds_on_this_machine(tmp_path, capsys):
    flags = f"""--data_dir {ROOT}/sample_data/RTE --task_name RTE --model_name_or_path tiny
        --max_steps 3 --max_seq_length 16 --no_cuda --workers 2 --batch 8 --rounds 2 --tasks 2b
        --output_dir {tmp_path / "out"}""".split()
    assert rounds.main(flags) == 0
    printed = capsys.readouterr().out
    shown = [line for line in printed.splitlines() if line.startswith("bench: ")]
    assert shown == [f"bench: round {r} of 2, task 2b" for r in (1, 2)]
    assert (tmp_path / "out" / "timings.html").exists()
    assert rounds.main(flags) == 2
    assert "already contains rounds" in capsys.readouterr().err
