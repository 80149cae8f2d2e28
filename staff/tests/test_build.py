"""The student's report: built as a PDF from records, and read back."""

import json
import shutil

from common.errors import UserError
from report import build, style
from report.headings import SECTIONS
from report.markdown import sections, typst
from staff.tests.test_figures import make_run

import pypdf
import pytest
import typst as compiler
from matplotlib import image

WHO = build.Student("ab123", "Ada", "Byron")
WORDS = "All of it is mine."


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def add_versions(run):
    facts = json.loads((run.folder / "run.json").read_text())
    facts["versions"] = {"torch": "2.13.0"}
    (run.folder / "run.json").write_text(json.dumps(facts))
    return str(run.folder)


@pytest.fixture
def runs(folder):
    """Everything that the report asks for."""
    scores = [{"epoch": epoch, "acc": 0.5 + epoch / 10} for epoch in (1, 2, 3)]
    losses = [0.7 - i / 1000 for i in range(50)]
    made = [make_run(folder / "one", "task1", losses, metrics=scores)]
    made += [make_run(folder / task, f"task{task}", losses) for task in ("2a", "2b", "3")]
    for batch in (16, 32):
        traffic = ("2b", "float32", 8e6, 8.08e6)
        made.append(make_run(folder / f"b{batch}", "task4", losses, traffic, batch=batch))
    return [add_versions(run) for run in made]


@pytest.fixture
def answers(folder):
    path = folder / "answers.md"
    path.write_text("".join(f"## {title}\n\n{WORDS} {n}\n\n" for n, title in enumerate(SECTIONS)))
    return path


def run(runs, answers, *more):
    names = ["--netid", WHO.netid, "--first", WHO.first, "--last", WHO.last]
    return build.main([*names, "--runs", *runs, "--answers", str(answers), *more])


def pages(path):
    return [page.extract_text() for page in pypdf.PdfReader(path).pages]


def test_a_whole_report(runs, answers, folder, capsys):
    assert run(runs, answers) == 0
    printed = capsys.readouterr().out
    assert "missing" not in printed
    assert "report: ab123_Ada_Byron.pdf" in printed
    found = pages(folder / "ab123_Ada_Byron.pdf")
    assert 3 <= len(found) <= 12
    text = "\n".join(found)
    assert "Ada Byron (ab123)" in text
    for n, title in enumerate(SECTIONS):
        assert title in text
        assert f"{WORDS} {n}" in text
    assert "1.200000" in text  # the first global loss: the mean of 0.7 and 1.7
    for value in ("0.6000", "0.7000", "0.8000", "+1.00 %", "8.080", "0123456789ab", "2.13.0"):
        assert value in text
    means = [1.5 * n for n in range(1, 6)]
    for value in (*means, sum(means)):
        assert f"{value:.1f}" in text
    assert "mean of 39 iterations" in text
    assert "Missing" not in text
    images = sum(len(page.images) for page in pypdf.PdfReader(folder / "ab123_Ada_Byron.pdf").pages)
    assert images == 0  # figures are drawings, sharp at every size


def test_every_page_can_be_looked_at(runs, answers, folder):
    assert run(runs, answers, "--pages", str(folder / "pages")) == 0
    count = len(pages(folder / "ab123_Ada_Byron.pdf"))
    for number in range(1, count + 1):
        page = image.imread(folder / "pages" / f"page-{number}.png")
        assert page.shape[0] > page.shape[1] > 500  # A4, upright
        ink = (page[..., :3].mean(axis=-1) < 0.5).mean()
        assert 0.001 < ink < 0.3  # neither blank nor black
    assert len(list((folder / "pages").iterdir())) == count


def test_the_mean_times_stand_side_by_side_with_their_spread(runs, answers, folder):
    path = folder / "2b" / "steps.rank1.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for n, line in enumerate(lines):
        line["seconds"]["total"] += n % 2 / 100  # the mean of both ranks: 5 ms more in every other
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run(runs, answers) == 0
    text = " ".join("\n".join(pages(folder / "ab123_Ada_Byron.pdf")).split())
    assert "task mean standard deviation middle half iterations workers" in text
    assert "2(a) 22.5 0.0 22.5 to 22.5 39 2 2(b) 25.1 2.5 22.5 to 27.5 39 2 3 22.5" in text


@pytest.mark.slow
def test_paper_is_a4_or_letter(runs, answers, folder):
    sizes = []
    for paper in ([], ["--paper", "letter"]):
        assert run(runs[:1], answers, *paper) == 0
        page = pypdf.PdfReader(folder / "ab123_Ada_Byron.pdf").pages[0].mediabox
        sizes.append((round(page.width), round(page.height)))
    assert sizes == [(595, 842), (612, 792)]


def test_no_heading_is_parted_from_its_table(folder):
    rows = [["run", "loss"], *([f"row {n}", "0.5"] for n in range(12))]
    part = {"missing": [], "figures": []}
    data = {
        **{"title": "T", "author": "A", "netid": "N", "sources": rows, "paper": "a4"},
        **{"font": style.FONT, "figure_width": style.WIDTH},
    }
    for lines in range(20, 60, 3):
        filler = '#"filler"#linebreak()' * lines
        table = {"caption": "a caption", "rows": rows}
        data["sections"] = [
            {**part, "title": "First", "tables": [], "answer": filler},
            {**part, "title": "Second", "tables": [table], "answer": filler},
        ]
        (folder / "data.json").write_text(json.dumps(data))
        shutil.copy(build.HERE / "report.typ", folder)
        compiler.compile(folder / "report.typ", folder / "x.pdf", font_paths=[style.font_folder()])
        found = pages(folder / "x.pdf")
        for heading, last in (("Second", "a caption"), ("Where the numbers", "row 11")):
            [page] = [text for text in found if heading in text]
            assert page.count("row 11") >= 1, lines
            assert last in page[page.index(heading) :], lines


def test_tables_images_and_formulas_of_the_students(runs, answers, folder, capsys):
    pixels = [[(0.8, 0.1, 0.1), (0.1, 0.1, 0.8)]] * 2
    (folder / "figures").mkdir()
    image.imsave(folder / "figures" / "mine.png", pixels)
    (folder / "odd.png").write_text("not an image")
    text = r"""
In all $2(N-1)S$ bytes, $\frac{2(N-1)}{N}$ of them on each link; it costs $5 or $6.

$$
\sum_{i=1}^{N} S_i
$$

| method | bytes |
|:-------|------:|
| ring   | **1.5** times $S$ |
| root   | |

![How I see it](figures/mine.png)

![](odd.png) ![](none.png) ![](notes.txt) $\begin{x}$
"""
    answers.write_text(answers.read_text().replace(f"{WORDS} 0", text) + "## My own\n\nmore\n")
    assert run(runs, answers) == 0
    lines = capsys.readouterr().out.splitlines()
    for what, fix in {
        "the image odd.png cannot be shown": "not a valid png file",
        "the image none.png cannot be shown": "check the path",
        "the image notes.txt cannot be shown": "convert it to one of .png",
        "the formula $\\begin{x}$ cannot be set": "Unknown symbol",
    }.items():
        [at] = [n for n, line in enumerate(lines) if line.endswith(what)]
        assert fix in lines[at + 1]
    pdf = pypdf.PdfReader(folder / "ab123_Ada_Byron.pdf")
    found = " ".join("\n".join(page.extract_text() for page in pdf.pages).split())
    assert sum(len(page.images) for page in pdf.pages) == 1
    for part in (
        "method bytes ring 1.5 times",
        "How I see it",
        "it costs $5 or $6.",
        "My own more",
    ):
        assert part in found, part
    for part in ("| ring", "frac", "S_i", "![How"):
        assert part not in found, part


@pytest.mark.slow
def test_traced_steps_are_in_the_report(runs, answers, folder):
    events = [
        {"ph": "X", "name": name, "ts": 0, "dur": duration}
        for name, duration in (
            ("ProfilerStep#1", 8000),
            ("gloo:all_reduce", 2000),
            ("autograd::engine::evaluate_function: A", 1000),
        )
    ]
    for rank in range(2):
        path = folder / "3" / f"trace.rank{rank}.json"
        path.write_text(json.dumps({"traceEvents": events}))
    assert run(runs, answers) == 0
    text = " ".join("\n".join(pages(folder / "ab123_Ada_Byron.pdf")).split())
    assert "3 1 8.0 25% 50%" in text


def test_what_is_missing_is_listed_with_its_command_and_marked(folder, answers, capsys):
    few = make_run(folder / "few", "task2a", [0.7] * 10, batch=32)
    one = make_run(folder / "one", "task1", [0.7] * 10, metrics=[{"epoch": 1, "acc": 0.5}])
    text = answers.read_text().replace(f"{WORDS} 5", "<!-- not yet -->")
    answers.write_text(text)
    assert run([add_versions(few), add_versions(one)], answers) == 0
    lines = capsys.readouterr().out.splitlines()
    pairs = dict(zip(lines[:-1:2], map(str.strip, lines[1::2]), strict=True))
    wanted = {
        "the metric after 3 epochs (there are 1)": "--num_train_epochs 3",
        "40 iterations to time (there are 10)": "--max_steps 40",
        "the total batch is 32, and task 1's 16": "--per_gpu_train_batch_size 8",
        "task 2b was not run": "task2b/run_glue.py",
        "task 3 was not run": "task3/run_glue.py",
        "task 4 was not run": "python -m experiments traffic",
        "your reasoning": '"## Implementation details"',
    }
    assert len(pairs) == len(wanted)
    for (what, fix), (listed, command) in zip(wanted.items(), pairs.items(), strict=True):
        assert what in listed
        assert fix in command
    assert lines[-1].endswith("(parts missing: 7)")
    marked = "\n".join(pages(folder / "ab123_Ada_Byron.pdf"))
    assert marked.count("Missing:") == 7


def test_a_template_has_the_headings_and_counts_as_empty(folder, capsys):
    path = folder / "new.md"
    assert build.main(["--template", str(path)]) == 0
    assert list(build.read_answers(path)) == list(SECTIONS)
    run([add_versions(make_run(folder / "one", "task1", [0.7] * 10))], path)
    assert capsys.readouterr().out.count("your reasoning") == len(SECTIONS)
    assert build.main(["--template", str(path)]) == 2
    assert "already exists" in capsys.readouterr().err


def test_headings_are_known_by_what_stands_before_the_colon(folder):
    path = folder / "answers.md"
    path.write_text("## Task 2(a)\n\none\n\n## Task 4: traffic\n\ntwo\n\n## scalability\n\nthree\n")
    found = build.read_answers(path)
    assert list(found.values()) == ["one", "two", "three"]
    assert found.keys() < SECTIONS.keys()


def test_a_further_task_that_was_run_has_its_section(runs, folder, answers, capsys):
    losses = [0.7] * 40
    sharded = make_run(folder / "zero1", "zero1", losses, memory=[(9_100_000, 9, 5)] * 2)
    with answers.open("a") as file:
        file.write("## Task 6, ZeRO-1\n\nHalf of the state.\n")
    assert run([*runs, add_versions(sharded)], answers) == 0
    text = "\n".join(pages(folder / "ab123_Ada_Byron.pdf"))
    for words in (
        "Task 6, ZeRO-1: sharding",
        "Half of the state",
        "MB that each worker held",
        "9.1",
    ):
        assert words in text
    assert "missing" not in capsys.readouterr().out


def test_reasoning_is_set_as_markdown_and_is_never_code(folder, answers, runs):
    hostile = (
        '#read("/etc/hostname") $5 @cite <label> \\ "quoted" *bold* _em_ `#code` [a](http://b.c)'
    )
    text = f"{hostile}\n\n- one\n- **two**\n\n1. first\n\n> said\n\n```\n## Scalability #x\n```\n"
    answers.write_text(answers.read_text().replace(f"{WORDS} 0", text))
    assert run(runs, answers) == 0
    found = "\n".join(pages(folder / "ab123_Ada_Byron.pdf"))
    for part in ('#read("/etc/hostname") $5 @cite', "#code", "two", "first", "said", "#x"):
        assert part in found, part
    assert "*bold*" not in found


def test_headings_in_code_are_not_headings():
    text = "## A\n\none\n```\n## B\n```\n## C\ntwo"
    assert sections(text) == {"A": "one\n```\n## B\n```", "C": "two"}
    assert typst("a *b* `c`") == '#par[#"a "#emph[#"b"]#" "#raw("c")]\n'


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ("format", "its records have format 99"),
        ("heading", "unknown heading 'Task 9', 'Scalabilty'"),
        ("answers", "cannot be read"),
        ("names", "--netid, --first: missing"),
    ],
)
def test_what_cannot_be_used_is_reported(folder, runs, answers, edit, says, capsys):
    if edit == "format":
        path = folder / "2b" / "run.json"
        path.write_text(path.read_text().replace('"format": 2', '"format": 99'))
    if edit == "heading":
        answers.write_text("## Task 9\n## Scalabilty\n## My own\n")
    if edit == "answers":
        answers.write_bytes(b"\xff\xfe\x00")
    if edit == "names":
        code = build.main(["--last", "B", "--answers", str(answers), "--runs", *runs])
    else:
        code = run(runs, answers)
    assert code == 2
    assert says in capsys.readouterr().err
    assert not list(folder.glob("*.pdf*"))


def test_answers_that_are_not_there_are_a_user_error(folder):
    with pytest.raises(UserError, match="cannot be read"):
        build.read_answers(folder / "none.md")
