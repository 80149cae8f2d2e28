"""The nine tasks' files, in their real layouts but with text of our own, and their metrics."""

import math
import os
import warnings
from pathlib import Path

from common.data.glue import GLUE_TASKS, find_glue_task, read_examples, score
from common.errors import UserError

import pytest

MNLI_START = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
    "sentence1_parse\tsentence2_parse\tsentence1\tsentence2"
)
STS_B = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
NLI_PAIR = "index\tsentence1\tsentence2\tlabel"

# (task, split) -> (file, its lines, the examples in it)
LAYOUTS = {
    ("CoLA", "train"): (
        "train.tsv",
        ["me24\t1\t\tWe sailed.", "me24\t0\t*\tSailed we did to."],
        [("We sailed.", None, 1), ("Sailed we did to.", None, 0)],
    ),
    ("CoLA", "test"): (
        "test.tsv",
        ["index\tsentence", "0\tThey row ."],
        [("They row .", None, None)],
    ),
    ("SST-2", "train"): (
        "train.tsv",
        ["sentence\tlabel", "a fine boat \t1", "leaks \t0"],
        [("a fine boat ", None, 1), ("leaks ", None, 0)],
    ),
    ("SST-2", "test"): (
        "test.tsv",
        ["index\tsentence", "0\tit floats"],
        [("it floats", None, None)],
    ),
    ("MRPC", "train"): (
        "train.tsv",
        ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t7\t8\tA sold B .\tB was sold ."],
        [("A sold B .", "B was sold .", 1)],
    ),
    ("MRPC", "test"): (
        "test.tsv",
        ["index\t#1 ID\t#2 ID\t#1 String\t#2 String", "0\t7\t8\tC rose .\tC fell ."],
        [("C rose .", "C fell .", None)],
    ),
    ("STS-B", "train"): (
        "train.tsv",
        [f"{STS_B}\tscore", "0\tnews\tx\t2012\t01\tnone\tnone\tA dog ran.\tA dog runs.\t4.250"],
        [("A dog ran.", "A dog runs.", 4.25)],
    ),
    ("QQP", "train"): (
        "train.tsv",
        ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "5\t1\t2\tWhy?\tHow so?\t0"],
        [("Why?", "How so?", 0)],
    ),
    ("QQP", "test"): (
        "test.tsv",
        ["id\tquestion1\tquestion2", "0\tWho?\tWhom?"],
        [("Who?", "Whom?", None)],
    ),
    ("MNLI", "train"): (
        "train.tsv",
        [f"{MNLI_START}\tlabel1\tgold_label"]
        + [
            f"0\t1\t1n\tfiction\t( a )\t( b )\t(R a)\t(R b)\tIt rains.\tWet.\tneutral\t{gold}"
            for gold in ("entailment", "neutral", "contradiction")
        ],
        [("It rains.", "Wet.", 1), ("It rains.", "Wet.", 2), ("It rains.", "Wet.", 0)],
    ),
    ("MNLI", "dev"): (
        "dev_matched.tsv",
        [
            f"{MNLI_START}\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label",
            "0\t1\t1n\ttravel\t( a )\t( b )\t(R a)\t(R b)\tSnow.\tCold.\tneutral\tentailment"
            "\tneutral\tcontradiction\tneutral\tentailment",
        ],
        [("Snow.", "Cold.", 1)],
    ),
    ("MNLI", "dev_mismatched"): (
        "dev_mismatched.tsv",
        [
            f"{MNLI_START}\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label",
            "0\t1\t1n\toup\t( a )\t( b )\t(R a)\t(R b)\tSun.\tWarm.\t-\t-\t-\t-\t-\tneutral",
        ],
        [("Sun.", "Warm.", 2)],
    ),
    ("MNLI", "test_mismatched"): (
        "test_mismatched.tsv",
        [MNLI_START, "0\t1\t1n\toup\t( a )\t( b )\t(R a)\t(R b)\tFog.\tGray."],
        [("Fog.", "Gray.", None)],
    ),
    ("QNLI", "train"): (
        "train.tsv",
        ["index\tquestion\tsentence\tlabel", "0\tWhen?\tIn May.\tentailment"],
        [("When?", "In May.", 0)],
    ),
    ("RTE", "train"): (
        "train.tsv",
        [NLI_PAIR, "0\tIt sank.\tIt floats.\tnot_entailment", "1\tBo ran.\tBo moved.\tentailment"],
        [("It sank.", "It floats.", 1), ("Bo ran.", "Bo moved.", 0)],
    ),
    ("RTE", "test"): (
        "test.tsv",
        ["index\tsentence1\tsentence2", "0\tIt sank.\tIt is wet."],
        [("It sank.", "It is wet.", None)],
    ),
    ("WNLI", "train"): (
        "train.tsv",
        [NLI_PAIR, "0\tThe cup fit in the bag as it was small.\tThe cup was small.\t1"],
        [("The cup fit in the bag as it was small.", "The cup was small.", 1)],
    ),
    ("AX", "test"): (
        "diagnostic.tsv",
        ["index\tsentence1\tsentence2", "0\tNo cat sat.\tA cat sat."],
        [("No cat sat.", "A cat sat.", None)],
    ),
}
RTE_HEADER = f"{NLI_PAIR}\n"


def write(folder: Path, name: str, content: str | bytes) -> Path:
    """A data folder with one file in it."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def read_rte(folder, content):
    return read_examples(
        find_glue_task("RTE"), write(folder / "RTE", "train.tsv", content), "train"
    )


@pytest.mark.parametrize(("name", "split"), LAYOUTS, ids=map("-".join, LAYOUTS))
def test_every_layout_of_glue_is_read(tmp_path, name, split):
    file, lines, expected = LAYOUTS[name, split]
    folder = write(tmp_path / name, file, "\n".join(lines) + "\n")
    assert read_examples(find_glue_task(name), folder, split) == expected


def test_the_table_has_all_nine_tasks_and_the_diagnostic_set():
    assert ", ".join(GLUE_TASKS) == "CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI, AX"
    assert {name for name, _ in LAYOUTS} == set(GLUE_TASKS)
    assert find_glue_task("MNLI").dev_splits == ["dev", "dev_mismatched"]
    assert find_glue_task("RTE").dev_splits == ["dev"]


def test_task_names_are_found_in_any_case():
    assert find_glue_task("rte") is find_glue_task("RTE") is GLUE_TASKS["RTE"]
    assert find_glue_task("sst-2") is GLUE_TASKS["SST-2"]
    with pytest.raises(UserError, match=r"--task_name SQUAD: must be one of CoLA, .*AX"):
        find_glue_task("SQUAD")


def test_quotes_and_odd_characters_are_text_and_only_newlines_end_a_row(tmp_path):
    texts = ['"unclosed', '""', 'it\'s "so"', "a\u2028b\u2029c\x85d\x1ce\x0bf\x0cg\rh", " padded "]
    rows = [f"{i}\t{text}\thypothesis\tentailment\n" for i, text in enumerate(texts)]
    examples = read_rte(tmp_path, RTE_HEADER + "".join(rows))
    assert [example.text_a for example in examples] == texts


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("bom", ["", "\ufeff"], ids=["plain", "bom"])
@pytest.mark.parametrize("last", [True, False], ids=["ended", "unended"])
def test_line_ends_and_a_bom_change_nothing(tmp_path, end, bom, last):
    text = bom + end.join(["sentence\tlabel", "good\t1", "bad\t0"]) + end * last
    examples = read_examples(GLUE_TASKS["SST-2"], write(tmp_path / "d", "dev.tsv", text), "dev")
    assert examples == [("good", None, 1), ("bad", None, 0)]


def test_columns_beyond_the_header_are_ignored(tmp_path):
    examples = read_rte(tmp_path, RTE_HEADER + "0\ta\tb\tentailment\tnote\t\n")
    assert examples == [("a", "b", 0)]


def test_lines_broken_in_two_are_skipped_in_qqp_alone(tmp_path):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    broken = '8\t3\t4\tWhat is "\n"\tWhat is it?\t0\n'
    text = header + "7\t1\t2\tWhy?\tHow?\t1\n" + broken + "9\t5\t6\tWho?\tWhom?\t0\n"
    folder = write(tmp_path / "QQP", "train.tsv", text)
    expected = [("Why?", "How?", 1), ("Who?", "Whom?", 0)]
    assert read_examples(GLUE_TASKS["QQP"], folder, "train") == expected
    write(folder, "train.tsv", header + broken)
    with pytest.raises(UserError, match=r"train.tsv: contains no examples"):
        read_examples(GLUE_TASKS["QQP"], folder, "train")
    with pytest.raises(UserError, match=r"train.tsv, line 3: the row is cut off \(2 columns"):
        read_rte(tmp_path, RTE_HEADER + "0\ta\tb\tentailment\n1\ta\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"train.tsv: contains no examples; .*download"),
        (b"\xef\xbb\xbf\r\n\r\n", r"train.tsv: contains no examples"),
        (RTE_HEADER, r"train.tsv: contains no examples"),
        ("index\tsentence1\tlabel\n0\ta\tentailment\n", r"line 1: .*no column sentence2"),
        (
            RTE_HEADER + "0\ta\tb\tentailment\n1\ta\tb\tperhaps\n",
            r"line 3: the label 'perhaps' .*not_",
        ),
        (RTE_HEADER + "0\ta\tb\tentailment\n1\ta \tc\tb\tentailment\n", r"line 3: .*stray tab"),
        (
            RTE_HEADER.encode() + b"0\ta\tb\tentailment\n1\tcaf\xe9\tb\tentailment\n",
            r"line 3: .*0xe9",
        ),
        (RTE_HEADER.encode("utf-16"), r"line 1: byte 0xff is not UTF-8"),
    ],
)
def test_what_is_wrong_with_a_file_is_reported_with_its_place(tmp_path, content, message):
    with pytest.raises(UserError, match=message) as raised:
        read_rte(tmp_path, content)
    assert str(tmp_path / "RTE" / "train.tsv") in str(raised.value)
    assert "looks like" not in str(raised.value)


@pytest.mark.parametrize("word", ["5.1", "-1", "nan", "inf", "high", ""])
def test_scores_are_numbers_from_0_to_5(tmp_path, word):
    file, lines, _ = LAYOUTS["STS-B", "train"]
    text = "\n".join([*lines, lines[1].replace("4.250", word)])
    with pytest.raises(UserError, match=r"train.tsv, line 3"):
        read_examples(GLUE_TASKS["STS-B"], write(tmp_path / "d", file, text), "train")


PAIRS = [(a, b) for a in GLUE_TASKS for b in GLUE_TASKS if a != b and "AX" not in (a, b)]


@pytest.mark.parametrize(("asked", "found"), PAIRS, ids=map(" given ".join, PAIRS))
def test_another_task_s_file_is_recognised(tmp_path, asked, found):
    _, lines, _ = LAYOUTS[found, "train"]
    folder = write(tmp_path / "d", "train.tsv", "\n".join(lines))
    with pytest.raises(UserError) as raised:
        read_examples(GLUE_TASKS[asked], folder, "train")
    message = str(raised.value)
    assert f"It looks like {found}" in message
    assert f"not {asked}; it begins with: " + " | ".join(lines[0].split("\t"))[:100] in message
    assert message.endswith("Correct --data_dir or --task_name.")


def test_a_missing_folder_or_file_is_reported_with_the_command_that_makes_it(tmp_path):
    fix = r"python download_glue_data.py --data_dir \S+ --tasks RTE"
    with pytest.raises(UserError, match=f"--data_dir {tmp_path}/no: is not a folder.*{fix}"):
        read_examples(GLUE_TASKS["RTE"], tmp_path / "no", "dev")
    with pytest.raises(UserError, match=f"--data_dir {tmp_path}: has no dev.tsv.*{fix}"):
        read_examples(GLUE_TASKS["RTE"], tmp_path, "dev")
    write(tmp_path / "RTE", "dev.tsv", RTE_HEADER)
    with pytest.raises(UserError, match=f"is the parent folder; use {tmp_path}/RTE"):
        read_examples(GLUE_TASKS["RTE"], tmp_path, "dev")
    with pytest.raises(UserError, match="AX has no train split, only test"):
        read_examples(GLUE_TASKS["AX"], tmp_path, "train")


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs Linux's /proc")
def test_a_file_that_cannot_be_read_is_reported_without_a_trace(tmp_path):
    (tmp_path / "dev.tsv").symlink_to("/proc/self/mem")  # not readable even by root
    with pytest.raises(UserError, match=r"dev.tsv: cannot be read \(Input/output error\)"):
        read_examples(GLUE_TASKS["RTE"], tmp_path, "dev")


def test_the_official_row_counts_of_rte():
    folder = Path(os.environ.get("GLUE_DIR", "")) / "RTE"
    if not (folder / "train.tsv").is_file():
        pytest.skip("GLUE_DIR names no folder with GLUE's RTE in it")
    counts = {
        split: len(read_examples(GLUE_TASKS["RTE"], folder, split))
        for split in GLUE_TASKS["RTE"].files
    }
    assert counts == {"train": 2490, "dev": 277, "test": 3000}


# predictions 1 1 0 0 1 for 1 0 0 1 1: 2 true and 1 false positive, 1 false and 1 true negative
BINARY = ([1, 1, 0, 0, 1], [1, 0, 0, 1, 1])


@pytest.mark.parametrize(
    ("name", "predictions", "labels", "expected"),
    [
        ("RTE", *BINARY, {"acc": 3 / 5}),
        ("MNLI", [0, 1, 2, 2], [0, 1, 1, 2], {"acc": 3 / 4}),
        ("MRPC", *BINARY, {"acc": 3 / 5, "f1": 2 / 3, "acc_and_f1": (3 / 5 + 2 / 3) / 2}),
        ("QQP", [0, 0], [0, 1], {"acc": 1 / 2, "f1": 0.0, "acc_and_f1": 1 / 4}),
        ("CoLA", *BINARY, {"mcc": (2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2)}),
        # deviations from the means: -1.5 -.5 .5 1.5 and -1.75 .25 -.75 2.25; ranks 1 3 2 4
        (
            "STS-B",
            [1.0, 2.0, 3.0, 4.0],
            [1.0, 3.0, 2.0, 5.0],
            {"pearson": 5.5 / math.sqrt(5 * 8.75), "spearmanr": 0.8}
            | {"corr": (5.5 / math.sqrt(5 * 8.75) + 0.8) / 2},
        ),
    ],
)
def test_metrics_are_those_computed_by_hand(name, predictions, labels, expected):
    assert score(GLUE_TASKS[name], predictions, labels) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "predictions", "labels"),
    [
        ("CoLA", [1, 1, 1], [0, 1, 1]),
        ("CoLA", [1, 0, 1], [1, 1, 1]),
        ("CoLA", [1, 1, 1], [1, 1, 1]),
        ("MRPC", [0, 0, 0], [0, 1, 1]),
        ("MRPC", [0, 0, 0], [0, 0, 0]),
        ("STS-B", [2.0, 2.0, 2.0], [0.0, 1.0, 5.0]),
        ("STS-B", [2.0, math.nan, 1.0], [0.0, 1.0, 5.0]),
        ("STS-B", [2.0, math.inf, 1.0], [0.0, 1.0, 5.0]),
        ("STS-B", [2.0], [1.0]),
    ],
)
def test_metrics_that_are_not_defined_are_0_and_warn_of_nothing(name, predictions, labels):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = score(GLUE_TASKS[name], predictions, labels)
    assert all(value == 0 for key, value in scores.items() if not key.startswith("acc"))


@pytest.mark.parametrize(("predictions", "labels"), [([1], [1, 0]), ([], []), ([[1]], [[1]])])
def test_predictions_that_do_not_match_the_labels_are_refused(predictions, labels):
    with pytest.raises(ValueError, match="predictions of shape"):
        score(GLUE_TASKS["RTE"], predictions, labels)
