"""Archives from anyone: what is kept, what is refused, and that nothing is left half-unpacked."""

import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile

from common.errors import UserError
from grading.hand_in import archive, members
from grading.hand_in.archive import fetch, submission_root, unpack

import pytest

SCRIPT = b"print('hello')\n"


def zip_of(path, files, **facts):
    """A zip of {name: bytes}; `facts` are set on every member."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in files.items():
            member = zipfile.ZipInfo(name)
            member.compress_type = zipfile.ZIP_DEFLATED
            for key, value in facts.items():
                setattr(member, key, value)
            bundle.writestr(member, content)
    return path


def tar_of(path, files, kind=tarfile.REGTYPE, link=""):
    """A tar of {name: bytes}, compressed as its suffix says."""
    mode = {"gz": "w:gz", "tgz": "w:gz", "xz": "w:xz", "tar": "w"}[path.name.rsplit(".")[-1]]
    with tarfile.open(path, mode) as bundle:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, link, 0o7777
            member.size = len(content) if kind == tarfile.REGTYPE else 0
            bundle.addfile(member, io.BytesIO(content))
    return path


def refused(packed, *words):
    """Unpacking is refused with those words, a fix and no trace in any folder."""
    before = {path: path.lstat().st_mtime_ns for path in packed.parent.parent.rglob("*")}
    with pytest.raises(UserError) as error:
        unpack(packed, packed.parent / "out")
    after = {path: path.lstat().st_mtime_ns for path in packed.parent.parent.rglob("*")}
    del before[packed.parent], after[packed.parent]  # .part came and went in it
    assert after == before
    for word in (packed.name, "pack", *words):
        assert word in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "inner").mkdir()
    return tmp_path / "inner"


@pytest.mark.parametrize("suffix", archive.SUFFIXES)
def test_what_was_packed_comes_out(folder, suffix):
    files = {"work/task1/run_glue.py": SCRIPT, "work/Task1/b": b"", "work/task1/big": b"ab" * 99999}
    make = zip_of if suffix == ".zip" else tar_of
    out = unpack(make(folder / f"some.one{suffix}", files), folder / "out")
    found = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert found == files
    for path in out.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) in (0o644, 0o755)
    assert os.access(out / "work/task1/run_glue.py", os.X_OK) == (suffix != ".zip")
    assert submission_root(out) == out / "work"
    assert sorted(path.name for path in folder.iterdir()) == ["out", f"some.one{suffix}"]


OUTSIDE = ["../x", "a/../../x", "/tmp/x", "C:\\x", "C:x", "\\\\host\\x", "a\\..\\..\\x", "//x"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_nothing_gets_outside(folder, name):
    files = {"task1/run_glue.py": SCRIPT, name: SCRIPT}
    refused(zip_of(folder / "a.zip", files), "outside")
    refused(tar_of(folder / "a.tar", files), "outside")


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_are_refused_in_a_tar(folder, kind):
    refused(tar_of(folder / "a.tgz", {"task1": b""}, kind, "/etc"), "link or a device")


def test_links_are_refused_in_a_zip(folder):
    mode = (stat.S_IFLNK | 0o777) << 16
    packed = zip_of(
        folder / "a.zip", {"task1": b"/etc/passwd"}, external_attr=mode, create_system=3
    )
    refused(packed, "link or a device", "task1")


def test_bombs_are_refused_while_they_unpack(folder, monkeypatch):
    zeros = bytes(30 * 2**20)
    refused(zip_of(folder / "a.zip", {"zeros": zeros}), "a bomb")
    refused(tar_of(folder / "a.tar.gz", {"zeros": zeros}), "a bomb")
    refused(tar_of(folder / "a.tar.xz", {"zeros": zeros}), "a bomb")
    monkeypatch.setattr(members, "UNPACKED", 10 * 2**20)
    refused(zip_of(folder / "b.zip", {"zeros": zeros}), "more than 10 MB")
    refused(tar_of(folder / "b.tar", {"zeros": zeros}), "more than 10 MB")


def test_sizes_are_counted_and_not_believed(folder):
    """The header of this zip says ten bytes; Python alone would stop there, or at the CRC."""
    packed = zip_of(folder / "a.zip", {"zeros": bytes(30 * 2**20)})
    data = bytearray(packed.read_bytes())
    place = data.index(b"PK\1\2")
    struct.pack_into("<I", data, place + 24, 10)
    struct.pack_into("<I", data, 22, 10)
    packed.write_bytes(data)
    refused(packed)


def test_many_files_are_refused(folder, monkeypatch):
    monkeypatch.setattr(members, "FILES", 20)
    files = {f"f{number}": b"" for number in range(30)}
    refused(zip_of(folder / "a.zip", files), "more than 20 files")
    refused(tar_of(folder / "a.tar", files), "more than 20 files")
    more = {f"f{number}": b"" for number in range(50)}
    refused(zip_of(folder / "b.zip", more), "more than 20 files")


def test_an_archive_that_is_too_large_is_not_read(folder):
    packed = folder / "a.zip"
    with packed.open("wb") as file:
        file.truncate(archive.PACKED + 1)
    refused(packed, "the limit is 50 MB")


def test_xz_that_wants_memory_is_refused(folder):
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 2**30}]
    plain = tar_of(folder / "a.tar", {"task1/run_glue.py": SCRIPT}).read_bytes()
    packed = folder / "a.tar.xz"
    packed.write_bytes(lzma.compress(plain, filters=filters))
    refused(packed, "broken")


@pytest.mark.parametrize("suffix", archive.SUFFIXES)
def test_a_damaged_archive_is_refused(folder, suffix):
    make = zip_of if suffix == ".zip" else tar_of
    files = {f"task1/{number}.py": os.urandom(2000) for number in range(40)}
    packed = make(folder / f"a{suffix}", files)
    whole = packed.read_bytes()
    for damaged in (
        b"",
        b"no archive",
        whole[: len(whole) // 2],
        whole[:100],
        whole[:30_000] + b"X" * 3000 + whole[33_000:],
    ):
        packed.write_bytes(damaged)
        if suffix == ".tar" and len(damaged) == len(whole):  # in content a tar has no check
            damaged = whole[: whole.index(b"task1/9.py")] + b"X" * 512 + whole[-30_000:]
            packed.write_bytes(damaged)
        refused(packed, "broken")


def test_an_encrypted_zip_is_refused(folder):
    packed = zip_of(folder / "a.zip", {"task1/run_glue.py": SCRIPT})
    data = bytearray(packed.read_bytes())
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    packed.write_bytes(data)
    refused(packed, "in it is encrypted")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_collide(folder):
    packed = folder / "a.zip"
    with zipfile.ZipFile(packed, "w") as bundle:
        bundle.writestr("task1/run_glue.py", b"first")
        bundle.writestr("task1/run_glue.py", b"second")
    out = unpack(packed, folder / "out")
    assert (out / "task1/run_glue.py").read_bytes() == b"second"


def test_a_file_where_a_folder_is_is_refused(folder):
    refused(zip_of(folder / "b.zip", {"task1": b"", "task1/run_glue.py": b""}), "broken")


def test_an_odd_kind_of_archive_is_refused(folder):
    for name in ("a.rar", "a.7z", "a.zip.txt", "zip"):
        (folder / name).write_bytes(b"x")
        refused(folder / name)
    packed = folder / "lzma.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_LZMA) as bundle:
        bundle.writestr("task1/run_glue.py", SCRIPT)
    refused(packed, "unsupported")


def test_windows_separators_are_folders(folder):
    packed = zip_of(folder / "a.zip", {"work/task1/run_glue.py": SCRIPT})
    packed.write_bytes(packed.read_bytes().replace(b"work/task1/run", b"work\\task1\\run"))
    assert submission_root(unpack(packed, folder / "out")) == folder / "out" / "work"


def make(folder, *files):
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(SCRIPT)
    return folder


@pytest.mark.parametrize(
    ("files", "root"),
    [
        (["task2a/run_glue.py", "old/task2a/run_glue.py"], "."),
        (["a/task1/x.py", "__MACOSX/a/task1/x.py", "README"], "a"),
        (["a/b/task3/x.py"], "a/b"),
        (["a/b/grading.yaml"], "a/b"),
        (["run_glue.py"], "."),
        (["part1/run_glue.py", "part2a/run_glue.py", "part2b/x/run_glue.py"], "."),
        (["a/part1/run_glue.py", "a/part2a/run_glue.py"], "a"),
    ],
)
def test_the_root_is_found(folder, files, root):
    assert submission_root(make(folder, *files)) == folder / root


@pytest.mark.parametrize(
    ("files", "root"),
    [
        (["src/train_ddp.py"], "."),
        (["work/src/train_ddp.py", "work/README"], "work"),
        (["a/b/src/train_ddp.py", "__MACOSX/a/b/src/x.py"], "a/b"),
        (["work/train_gather.py", "work/lib/data.py"], "."),
        (["part1/run_glue.py", "part3/train_ddp.py"], "."),
        (["a/task1/run_glue.py", "b/x.py"], "a"),
        (["a/part1/run_glue.py"], "a/part1"),
    ],
)
def test_with_a_mapping_scripts_may_have_any_name(folder, files, root):
    source = make(folder / "in", *files)
    out = folder / "out"
    assert fetch(source, out, any_script=True) == out / root
    packed = zip_of(folder / "a.zip", dict.fromkeys(files, SCRIPT))
    assert fetch(packed, folder / "out2", any_script=True) == folder / "out2" / root


def test_without_a_mapping_other_scripts_are_refused_with_what_to_do(folder):
    with pytest.raises(UserError, match=r"like src/train_ddp\.py need a grading\.yaml, or --mapp"):
        submission_root(make(folder, "src/train_ddp.py"))
    with pytest.raises(UserError, match="no task1/"):
        submission_root(make(folder / "empty", "README"), any_script=True)


def test_without_a_submission_it_is_said_what_is_missing(folder):
    make(folder, "Task 2a/x.py", "\x1b[2J", "a/b/c/task1/x.py")
    with pytest.raises(UserError, match=r"no task1/, task2a/.*it holds .*Task 2a.*pack"):
        submission_root(folder)
    make(folder, "one/task1/x.py", "two/task1/x.py")
    with pytest.raises(UserError, match="2 submissions in one: one, two"):
        submission_root(folder)


def test_a_folder_is_copied_without_links_and_junk(folder):
    source = make(folder / "in", "task1/run_glue.py", ".git/x", "runs/x", "task1/cached_x", "w.bin")
    (source / "task2a").symlink_to("/etc")
    (source / "task1/passwd").symlink_to("/etc/passwd")
    os.mkfifo(source / "task1/pipe")
    root = fetch(source, folder / "out")
    assert root == folder / "out"
    assert [str(p.relative_to(root)) for p in root.rglob("*")] == ["task1", "task1/run_glue.py"]
    (folder / "link").symlink_to(source)
    with pytest.raises(UserError, match="link"):
        fetch(folder / "link", folder / "out2")


def test_an_archive_alone_in_a_folder_is_unpacked(folder):
    (folder / "in").mkdir()
    (folder / "in/report.pdf").write_bytes(b"%PDF")
    zip_of(folder / "in/mine.zip", {"mine/task1/run_glue.py": SCRIPT})
    assert fetch(folder / "in", folder / "out") == folder / "out" / "mine"
