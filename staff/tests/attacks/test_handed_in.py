"""Archives, folders and grading.yaml files that attack the grader before anything runs."""

import io
import os
import socket
import stat
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

from common.errors import UserError
from common.tasks import TASKS
from grading.checks.byte_counts import our_summary
from grading.checks.exit_causes import explain_end
from grading.checks.numbers_in_text import BAR, numbers
from grading.checks.observation import Observation, Rank
from grading.commands import command_of
from grading.hand_in.archive import fetch
from grading.mapping import read_mapping
from grading.plan import Ended, Limits
from grading.runner import asserts_its_total
from grading.sandbox.temporary import remove

import pytest

pytestmark = pytest.mark.timeout(60)
SCRIPT = "task1/run_glue.py"


def zipped(path: Path, *members, **facts):
    """A zip of a script and further (name, content) members, on which `facts` are set."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr(SCRIPT, "pass")
        for name, content in members:
            member = zipfile.ZipInfo(name)
            member.compress_type = zipfile.ZIP_DEFLATED
            for key, value in facts.items():
                setattr(member, key, value)
            bundle.writestr(member, content)


def tarred(path: Path, name: str, kind=tarfile.REGTYPE, link=""):
    """A tar of a script and a further member of that kind."""
    with tarfile.open(path, "w") as bundle:
        script = tarfile.TarInfo(SCRIPT)
        bundle.addfile(script, io.BytesIO())
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.mode = kind, link, 0o6777
        member.devmajor, member.devminor = 254, 0
        bundle.addfile(member, io.BytesIO())


LINK = {"external_attr": (stat.S_IFLNK | 0o777) << 16, "create_system": 3}
ARCHIVES = {  # name -> (suffix, what makes it); each is refused
    "deep_zip": (".zip", lambda path: zipped(path, ("d/" * 1500 + "x", "x"))),
    "deep_folders_in_zip": (".zip", lambda path: zipped(path, ("d/" * 900, ""))),
    "deep_tar": (".tar", lambda path: tarred(path, "d/" * 1500 + "x")),
    "bomb": (".zip", lambda path: zipped(path, ("zeros", bytes(2**25)))),
    "many_files": (".zip", lambda path: zipped(path, *((f"f{n}", "") for n in range(6000)))),
    "above": (".zip", lambda path: zipped(path, ("../../evil", "x"))),
    "absolute": (".zip", lambda path: zipped(path, ("/tmp/evil", "x"))),
    "drive": (".zip", lambda path: zipped(path, ("C:\\evil", "x"))),
    "linked_zip": (".zip", lambda path: zipped(path, ("link", "/etc"), **LINK)),
    "through_a_file": (".zip", lambda path: zipped(path, (f"{SCRIPT}/evil", "x"))),
    "long_name": (".zip", lambda path: zipped(path, ("x" * 5000, "x"))),
    "symbolic_link": (".tar", lambda path: tarred(path, "link", tarfile.SYMTYPE, "/etc")),
    "hard_link": (".tar", lambda path: tarred(path, "link", tarfile.LNKTYPE, "/etc/shadow")),
    "device": (".tar", lambda path: tarred(path, "disk", tarfile.BLKTYPE)),
    "pipe": (".tar", lambda path: tarred(path, "pipe", tarfile.FIFOTYPE)),
    "no_archive": (".tar.xz", lambda path: path.write_bytes(b"\xfd7zXZ\0" + bytes(99))),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_is_refused_whole(name, tmp_path):
    suffix, make = ARCHIVES[name]
    room = tmp_path / "room"
    room.mkdir()
    make(room / f"ann{suffix}")
    with pytest.raises(UserError) as error:
        fetch(room / f"ann{suffix}", tmp_path / "work" / "ann")
    assert len(str(error.value)) < 600
    assert sorted(path.name for path in tmp_path.rglob("*")) == [f"ann{suffix}", "room", "work"]


def deep(folder: Path):
    """1,500 folders in each other."""
    before = Path.cwd()
    os.chdir(folder)
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(before)


def listen(folder: Path):
    """A socket, whose path must be short."""
    before = Path.cwd()
    os.chdir(folder)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
    os.chdir(before)


FOLDERS = {  # name -> what is added to a folder that is graded without it
    "deep": deep,
    "pipe": lambda folder: os.mkfifo(folder / "pipe"),
    "pipe_as_mapping": lambda folder: os.mkfifo(folder / "grading.yaml"),
    "pipe_as_archive": lambda folder: os.mkfifo(folder / "x.zip"),
    "socket": listen,
    "link_to_everything": lambda folder: (folder / "all").symlink_to("/"),
    "linked_script": lambda folder: (folder / "task2a").symlink_to("/etc"),
    "circle": lambda folder: (folder / "circle").symlink_to(folder),
    "set_user_id": lambda folder: os.chmod(folder / SCRIPT, 0o6755),
    "odd_name": lambda folder: (folder / "a\n\x1b[2J\udcff").write_text("x"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_copied_without_what_attacks(name, tmp_path, request):
    folder = tmp_path / "room" / "ann"
    request.addfinalizer(lambda: remove(folder))  # pytest's own removal is recursive
    (folder / "task1").mkdir(parents=True)
    (folder / SCRIPT).write_text("pass")
    FOLDERS[name](folder)
    root = fetch(folder, tmp_path / "work")
    kept = {path.relative_to(root).as_posix(): path.lstat().st_mode for path in root.rglob("*")}
    assert SCRIPT in kept
    assert all(mode & 0o7777 in (0o644, 0o755) for mode in kept.values())
    assert all(stat.S_ISREG(mode) or stat.S_ISDIR(mode) for mode in kept.values())
    assert read_mapping(root).own == {}


BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9}]\n" for n in range(1, 9))
MAPPINGS = {  # name -> a grading.yaml; each is refused, and shows nothing of the grader
    "attributes": "task1: {arguments: '{model.exists.__globals__[os].environ}'}",
    "index": "task1: {arguments: '{model[0]}'}",
    "width": "task1: {arguments: '{rank:>9999999999}'}",
    "conversion": "task1: {arguments: '{model!r}'}",
    "brackets": "[" * 20_000,
    "braces": "{" * 20_000,
    "aliases": BOMB,
    "recursion": "task1: &a {arguments: *a}",
    "object": "task1: !!python/object/apply:os.system ['touch CANARY']",
    "path_above": "task1: {script: ../../../etc/passwd}",
    "path_absolute": "task1: {script: /etc/passwd}",
    "path_with_zero": 'task1: {script: "a\\0b"}',
    "path_too_long": "task1: {script: " + "x/" * 1500 + "}",
    "quotes": "task1: {arguments: '\"'}",
    "huge": "task1: {arguments: " + "x" * 10**6 + "}",
    "not_text": "task1: {arguments: {a: {b: {c: {d: e}}}}}",
    "bytes": b"\xff\xfe\x00task1",
    "control": "task1: {arguments: '\x1b[2J'}",
}


def command(folder: Path) -> list[str]:
    """Task 1's command, as a submission's own mapping has it."""
    values = {"model": Path("/model"), "rank": 0}
    return command_of(read_mapping(folder).entry("task1").facts, TASKS["task1"], values, folder)


@pytest.mark.parametrize("name", MAPPINGS)
def test_a_mapping_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_SECRET", "not-for-students")
    text = MAPPINGS[name]
    text = text if isinstance(text, bytes) else text.encode()
    (tmp_path / "grading.yaml").write_bytes(text.replace(b"CANARY", bytes(tmp_path / "canary")))
    (tmp_path / "task1").mkdir()
    (tmp_path / SCRIPT).write_text("pass")
    with pytest.raises(UserError) as error:
        command(tmp_path)
    assert "not-for-students" not in str(error.value)
    assert len(str(error.value)) < 10_000
    assert not (tmp_path / "canary").exists()


TEXTS = {
    "bars": "1%|" * 350_000,
    "digits": "1" * 10**6 + "%|",
    "points": "1." * 500_000,
    "commit": "commit 4e7281934, 1e999999999, 1e-999999999, -4E99999",
}


ERRORS = {
    "asserts": "assert 64 64 " * 80_000,
    "lost": "rank 1 rank 11 has lost " * 40_000,
    "frames": 'File "' * 150_000,
    "spaces": "\n \t" * 300_000 + "x",
}


@pytest.mark.parametrize("text", ERRORS.values(), ids=ERRORS)
def test_errors_are_explained_in_little_time(text):
    rank = Rank(err=text)
    graded = SimpleNamespace(runs={"plain": SimpleNamespace(seen=SimpleNamespace(ranks=[rank]))})
    assert not asserts_its_total(graded)
    seen = Observation([rank], Ended([1], first=0, stacks=[text[:65536]]), Path("/submission"))
    assert len(str(explain_end(seen, Limits()))) < 2000
    seen.ended.reason = "idle"
    assert len(str(explain_end(seen, Limits()))) < 2000


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_what_is_printed_is_read_in_little_time(text):
    assert all(abs(value) < 1e300 for value, _ in numbers(BAR.sub("\n", text)))


def test_numbers_of_a_summary_that_are_none_are_not_right():
    for value in ("NaN", "Infinity", "9" * 4000, "[" * 100_000, '"x"'):
        found = our_summary('"per_iteration": {"payload": ' + value + "}")
        assert not abs(found.get("payload", 0) - 4000) <= 40
