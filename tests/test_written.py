"""What a run wrote is found wherever it lies, in the order of writing, and does no harm."""

import os

from grading.checks.written import DEEPEST, find_texts, read_texts


def write(path, text, seconds):
    """A file written at that time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (seconds, seconds))


def test_new_files_in_subfolders_are_read_in_the_order_of_writing(tmp_path):
    own, output = tmp_path / "own", tmp_path / "output"
    write(own / "results" / "old.txt", "from before", 1)
    write(own / "grown.log", "one", 1)
    before = find_texts(own)
    write(own / "grown.log", "one two", 4)
    write(own / "results" / "z.csv", "first", 2)
    write(output / "checkpoint-2" / "a.txt", "second", 3)
    write(output / "run.json", "the plumbing's", 3)
    write(output / "tokenizer_config.json", "the model's", 3)
    write(output / "weights.bin", "not text", 3)
    assert read_texts([own, output], before) == "first\nsecond\none two"


def test_links_pipes_and_deep_folders_are_left_out(tmp_path):
    secret = tmp_path / "secret"
    write(secret / "a.txt", "secret", 1)
    own = tmp_path / "own"
    own.mkdir()
    (own / "b.txt").symlink_to(secret / "a.txt")
    (own / "c").symlink_to(secret)
    os.mkfifo(own / "d.txt")
    here = os.getcwd()
    os.chdir(own)
    try:
        for _ in range(200):
            os.mkdir("deep")
            os.chdir("deep")
    finally:
        os.chdir(here)
    write(own.joinpath(*["e"] * (DEEPEST + 1)) / "f.txt", "too deep", 1)
    write(own / "g.txt", "read", 1)
    assert read_texts([own], {}) == "read"
