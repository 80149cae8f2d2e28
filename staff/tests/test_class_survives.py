"""A class's run ends well, whatever is in its folder and however it is ended."""

import os
import signal
import socket

from grading.results import PASSED, Report, Result
from grading.sandbox import temporary
from staff.classroom.marks import Row
from staff.classroom.summary import summary_text
from staff.tests.classes import DEADLINE, grade, started, submission, wait_until_asleep
from tests.workers import ending

import psutil
import pytest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_writes_its_tables_and_resumes(room, tmp_path, number):
    submission(room / "ann", "right")
    submission(room / "bob", "sleep")
    submission(room / "cid", "right")
    out = tmp_path / "out"
    with ending(started(room, out)) as process:
        wait_until_asleep(process)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        printed, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert "interrupted; what is finished is kept" in errors
    assert "Traceback" not in errors
    assert "graded: 1 of 3 (2 not graded yet)" in printed
    psutil.wait_procs(children, timeout=DEADLINE)
    assert not [child for child in children if child.is_running()]
    assert (out / "reports" / "ann.json").exists()
    assert "1 of 3 graded, 2 not graded yet" in (out / "matrix.html").read_text()
    assert '"not graded yet: the run was interrupted' in (out / "grades.csv").read_text()
    assert not list(tmp_path.glob("grading-*"))
    (room / "bob" / "task1" / "run_glue.py").write_text("right")
    with ending(started(room, out)) as process:
        printed, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, errors
    assert "1 of 3 already graded" in printed
    assert "graded: 3 of 3\n" in printed


def test_folders_of_a_killed_run_are_removed_at_the_next_start(room, tmp_path):
    submission(room / "ann", "sleep")
    with ending(started(room, tmp_path / "out")) as process:
        wait_until_asleep(process)
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    psutil.wait_procs(children, timeout=DEADLINE)
    (left, *_) = tmp_path.glob("grading-*")
    (room / "ann" / "task1" / "run_glue.py").write_text("right")
    with ending(started(room, tmp_path / "out")) as process:
        _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, errors
    assert not left.exists()
    assert not list(tmp_path.glob("grading-*"))


def test_the_folder_of_a_living_run_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(temporary.tempfile, "tempdir", str(tmp_path))
    living = temporary.PrivateFolder()
    assert temporary.remove_abandoned() == 0
    assert living.path.is_dir()
    living.remove()
    assert not list(tmp_path.iterdir())


def deep(folder, depth):
    """A folder nested so deep that recursive code fails on it."""
    folder.mkdir()
    for _ in range(depth):
        folder /= "d"
        folder.mkdir()


def test_no_entry_of_the_folder_ends_the_class(room, tmp_path, request):
    request.addfinalizer(lambda: temporary.remove(room))  # pytest's own removal is recursive
    submission(room / "ann", "right")
    os.mkfifo(room / "fifo")
    os.mkfifo(room / "fifo.zip")
    (room / "loop").symlink_to("loop")
    (room / "link").symlink_to("ann")
    (room / "bob.rar").write_bytes(b"Rar!")
    (room / "broken.zip").write_bytes(b"PK\x03\x04" + bytes(100))
    deep(room / "deep", 1500)
    with (room / "huge.zip").open("wb") as file:
        file.truncate(10**12)
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(room)  # a socket's path is short
        listener.bind("socket")
        os.chdir(here)
    submission(room / "zoe", "right")
    rows, table = grade(room, tmp_path / "out", jobs=2)
    assert rows["ann"].points == rows["zoe"].points == 4
    wrong = {"fifo", "fifo.zip", "loop", "link", "bob.rar", "broken", "deep", "huge", "socket"}
    assert set(table) == {"ann", "zoe"} | wrong
    for name in wrong:
        assert rows[name].error, name
        assert table[name]["note"].startswith("could not be graded: "), name
    assert "link or a device" in rows["fifo"].error
    assert "link or a device" in rows["fifo.zip"].error
    assert "1000000 MB" in rows["huge"].error or "953674 MB" in rows["huge"].error


def test_files_about_the_class_are_no_students(room, tmp_path):
    submission(room / "ann", "right")
    submission(room / "notes.md", "right")  # a folder is a submission, whatever its name
    for name in ("submission_metadata.yml", "Canvas Export.CSV", "read me.txt", "seats.PNG"):
        (room / name).write_text("x")
    assert set(grade(room, tmp_path / "out")[0]) == {"ann", "notes.md"}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user who may not read")
def test_a_folder_that_cannot_be_read_is_its_own_result(room):
    from staff.classroom import reports

    submission(room / "ann", "right").chmod(0)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setuid(65534)
            reports.content_digest(room / "ann")
        except OSError as error:
            os.write(write, str(error.strerror).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "Permission denied"


def test_nothing_graded_never_reads_as_passed():
    assert "passed" not in summary_text([])
    assert "passed" not in summary_text([Row("ann", error="broken")])
    assert "passed" not in summary_text([Row("ann", Report("ann"))])
    graded = Row("ann", Report("ann", [Result("task1/runs", "runs", PASSED, 1, 1)]))
    text = summary_text([graded, Row("bob", error="x", pending=True)])
    assert text == "graded: 1 of 2 (1 not graded yet)\n  every check passed"


def test_only_grades_those_named(room, tmp_path):
    for name in ("ann", "bob", "cid"):
        submission(room / name, "right")
    out = tmp_path / "out"
    rows, _ = grade(room, out, only=("ann", "bob"))
    assert rows["ann"].points == rows["bob"].points == 4
    assert rows["cid"].pending
    assert "--only" in rows["cid"].error
    for name in ("ann", "bob"):
        (room / name / "task1" / "run_glue.py").write_text("wrong")
    rows, table = grade(room, out, only=("bob",))
    assert rows["bob"].points == 0
    assert rows["ann"].points == 4
    assert "graded before it" in table["ann"]["note"]
