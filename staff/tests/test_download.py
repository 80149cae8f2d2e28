"""The downloader against a real server on this machine, with rows of our own making."""

import hashlib
import io
import json
import re
import signal
import stat
import struct
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import download_glue_data as dl

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[2]
RTE = {"train": 2490, "dev": 277, "test": 3000}
RTE_FILES = [f"RTE/{split}.tsv" for split in RTE]
HALF = 2 * dl.CHUNK_BYTES  # whole chunks, so that a client keeps all it was sent
DEADLINE = 30


def tsv(rows: int, seed: str = "") -> bytes:
    """rows of RTE's shape, about 100 bytes each, that do not compress away; a stray quote too."""
    lines = ["index\tsentence1\tsentence2\tlabel"]
    for i in range(rows):
        noise = hashlib.sha256(f"{seed}{i}".encode()).hexdigest()
        lines.append(f'{i}\tA "{noise}\tB {noise[:9]}\tentailment')
    return ("\n".join(lines) + "\n").encode()


def zipped(members: dict[str, bytes], *extra: tuple[zipfile.ZipInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, data in members.items():
            bundle.writestr(name, data)
        for info, data in extra:
            bundle.writestr(info, data)
    return buffer.getvalue()


def rte_members(seed: str = "", **other: int) -> dict[str, bytes]:
    return {f"RTE/{split}.tsv": tsv(n, seed + split) for split, n in {**RTE, **other}.items()}


@pytest.fixture(scope="session")
def rte_zip() -> bytes:
    archive = zipped(rte_members())
    assert len(archive) > HALF + dl.CHUNK_BYTES
    return archive


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def offset(asked: str) -> int:
    """Where a Range header, bytes=N-, starts."""
    return int(re.fullmatch(r"bytes=(\d+)-", asked)[1])


class Handler(BaseHTTPRequestHandler):
    """Serves files with Range; each request first takes the next entry of the server's script."""

    def do_GET(self):
        server, asked = self.server, self.headers.get("Range")
        with server.guard:
            server.log.append((self.path, asked))
            act = server.script.pop(0) if server.script else "good"
        if act == "silent":
            server.release.wait(DEADLINE)
        elif act.isdigit():
            self.send_error(int(act))
        elif self.path[1:] not in server.files:
            self.send_error(404)
        else:
            start = offset(asked) if asked and act != "ignore range" else 0
            self.send_body(server.files[self.path[1:]], start, act)

    def send_body(self, body: bytes, start: int, act: str):
        if start >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        sent = body[start : HALF if act in ("truncate", "stall", "drip") else None]
        self.server.sent += len(sent)
        self.wfile.write(sent)
        while act == "drip" and not self.server.release.wait(0.05):
            self.wfile.write(b"x")
            self.server.sent += 1
        if act == "stall":
            self.server.release.wait(DEADLINE)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.guard, self.release = threading.Lock(), threading.Event()
        self.files, self.script, self.log, self.sent = {}, [], [], 0
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_):
        """A client that was killed is no news."""


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(dl, "BACKOFF_SECONDS", 0)
    running = Server()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.release.set()
    running.shutdown()
    running.server_close()
    thread.join(DEADLINE)
    assert not thread.is_alive()


@pytest.fixture
def official(server, rte_zip, monkeypatch):
    """The server as if it were GLUE's own: its RTE.zip has the published sum."""
    server.files["RTE.zip"] = rte_zip
    monkeypatch.setattr(dl, "GLUE", server.url + "/")
    monkeypatch.setitem(dl.SHA256, "RTE.zip", digest(rte_zip))
    return server


def run(data_dir: Path, *flags: str, tasks: str = "RTE") -> int:
    return dl.main(["--data_dir", str(data_dir), "--tasks", tasks, *flags])


def start(data_dir: Path, *flags: str) -> subprocess.Popen:
    """The command as a user starts it, in a process of its own, with Ctrl-C not ignored."""
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "import download_glue_data as dl; sys.exit(dl.main())"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, "--data_dir", data_dir, "--tasks", "RTE", *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen) -> tuple[int, str]:
    """Exit status and output; never leaves the process behind."""
    try:
        out, _ = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out


def until_half_is_on_disk(data_dir: Path, process: subprocess.Popen) -> None:
    part = data_dir / dl.WORK / "RTE.zip.part"
    pace = threading.Event()
    for _ in range(DEADLINE * 100):
        if part.exists() and part.stat().st_size >= HALF - dl.CHUNK_BYTES:
            return
        assert process.poll() is None, process.communicate()
        pace.wait(0.01)
    raise AssertionError("no half file within the deadline")


def placed(data_dir: Path) -> list[str]:
    """Every file a user sees in data_dir."""
    files = (path.relative_to(data_dir) for path in data_dir.rglob("*") if path.is_file())
    return sorted(str(path) for path in files if path.parts[0] != dl.WORK)


def assert_rte(data_dir: Path, seed: str = "") -> None:
    for name, data in rte_members(seed).items():
        assert (data_dir / name).read_bytes() == data
    leftover = {path.name for path in (data_dir / dl.WORK).iterdir()} - {"lock"}
    assert leftover == set()


# Good downloads


def test_official_archive_is_placed_and_skipped_the_next_time(official, tmp_path, capsys):
    assert run(tmp_path) == 0
    assert_rte(tmp_path)
    assert placed(tmp_path) == sorted([*RTE_FILES, dl.RECORDS])
    assert re.search(r"RTE/train\.tsv +2490 +2490$", capsys.readouterr().out, re.M)
    assert run(tmp_path) == 0
    assert official.log == [("/RTE.zip", None)]
    assert "RTE: already complete" in capsys.readouterr().out


def test_only_the_expected_files_are_taken(server, tmp_path):
    extra = {"RTE/original/notes.txt": b"x", "RTE/Icon\r": b"", "other.tsv": b"x"}
    server.files["RTE.zip"] = zipped({**rte_members(), **extra})
    assert run(tmp_path, "--source", server.url) == 0
    assert placed(tmp_path) == sorted([*RTE_FILES, dl.RECORDS])


def test_folder_as_source(tmp_path, rte_zip, capsys):
    archives = tmp_path / "archives"
    archives.mkdir()
    assert run(tmp_path / "data", "--source", str(archives)) == 1
    assert f"{archives / 'RTE.zip'} does not exist" in capsys.readouterr().err
    (archives / "RTE.zip").write_bytes(rte_zip)
    assert run(tmp_path / "data", "--source", str(archives)) == 0
    assert_rte(tmp_path / "data")
    assert (archives / "RTE.zip").read_bytes() == rte_zip


def test_diagnostic_set_and_headerless_cola(server, tmp_path, capsys):
    server.files["AX.tsv"] = tsv(1104)
    bodies = {"train": b"k\t1\t\tA row\n" * 8551, "dev": b"k\t0\t*\tA row\n" * 1043}
    members = {f"CoLA/{split}.tsv": body for split, body in bodies.items()}
    server.files["CoLA.zip"] = zipped({**members, "CoLA/test.tsv": tsv(1063)})
    assert run(tmp_path, "--source", server.url + "/", tasks="ax, cola") == 0
    assert (tmp_path / "diagnostic" / "diagnostic.tsv").read_bytes() == tsv(1104)
    assert "DIFFERS" not in capsys.readouterr().out


def test_mrpc_is_split_as_glue_does(server, tmp_path, monkeypatch):
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    rows = [f'{i % 2}\t{100 + i}\t{200 + i}\tÉin "{i}\tTwo {i}' for i in range(6)]
    server.files["msr_paraphrase_train.txt"] = (header + "\r\n".join(rows[:4]) + "\r\n").encode()
    server.files["msr_paraphrase_test.txt"] = (header + "\r\n".join(rows[4:])).encode()
    server.files["mrpc_dev_ids.tsv"] = b"101\t201\r\n103\t203\r\n"
    small = dl.glue_files("MRPC", *dl.MRPC, train=2, dev=2, test=2)
    monkeypatch.setitem(dl.TASKS, "MRPC", small)
    assert run(tmp_path, "--source", server.url, tasks="MRPC") == 0
    head = header.replace("\r", "")
    expected = {
        "train": head + f"{rows[0]}\n{rows[2]}\n",
        "dev": head + f"{rows[1]}\n{rows[3]}\n",
        "test": "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        '0\t104\t204\tÉin "4\tTwo 4\n1\t105\t205\tÉin "5\tTwo 5\n',
    }
    for split, text in expected.items():
        assert (tmp_path / "MRPC" / f"{split}.tsv").read_bytes() == text.encode()


# Interrupted downloads


def test_truncated_body_is_resumed_by_range(official, tmp_path):
    official.script = ["truncate"]
    assert run(tmp_path) == 0
    (_, first), (_, second) = official.log
    assert first is None
    assert offset(second) >= HALF - dl.CHUNK_BYTES
    assert official.sent <= len(official.files["RTE.zip"]) + dl.CHUNK_BYTES
    assert_rte(tmp_path)


def test_server_that_ignores_range_starts_over(official, tmp_path):
    official.script = ["truncate", "ignore range"]
    assert run(tmp_path) == 0
    assert len(official.log) == 2
    assert official.log[1][1] is not None
    assert_rte(tmp_path)


def test_file_that_changed_on_the_server_starts_over(official, tmp_path):
    part = tmp_path / dl.WORK / "RTE.zip.part"
    part.parent.mkdir()
    part.write_bytes(zipped(rte_members("old"))[:HALF])
    assert run(tmp_path) == 0
    assert [asked for _, asked in official.log] == [f"bytes={HALF}-", None]
    assert_rte(tmp_path)


def test_part_longer_than_the_file_starts_over(official, tmp_path):
    part = tmp_path / dl.WORK / "RTE.zip.part"
    part.parent.mkdir()
    part.write_bytes(b"x" * (len(official.files["RTE.zip"]) + 1))
    assert run(tmp_path) == 0
    assert_rte(tmp_path)


def test_resumed_file_without_a_known_sum_is_fetched_whole(server, tmp_path, rte_zip):
    server.files["RTE.zip"] = rte_zip
    server.script = ["truncate"]
    assert run(tmp_path, "--source", server.url) == 0
    assert server.log[-1][1] is None
    assert_rte(tmp_path)


@pytest.mark.parametrize(
    ("kill", "expected"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)]
)
def test_killed_run_is_repaired_by_the_next(server, tmp_path, rte_zip, kill, expected):
    server.files["RTE.zip"] = rte_zip
    server.script = ["stall"]
    records = {f"{server.url}/RTE.zip": digest(rte_zip)}
    (tmp_path / dl.RECORDS).write_text(json.dumps(records))
    first = start(tmp_path, "--source", server.url)
    try:
        until_half_is_on_disk(tmp_path, first)
        first.send_signal(kill)
        first.wait(DEADLINE)
    finally:
        first.kill()
    status, out = finish(first)
    assert status == expected
    if kill == signal.SIGINT:
        assert out.count("\n") == 1
        assert out.startswith("interrupted: ")
    else:
        assert list((tmp_path / dl.WORK).glob("fresh-*"))
    assert placed(tmp_path) == [dl.RECORDS]
    status, out = finish(start(tmp_path, "--source", server.url))
    assert status == 0, out
    assert offset(server.log[1][1]) > 0
    assert len(server.log) == 2
    assert_rte(tmp_path)


def test_half_a_task_and_damaged_files_are_repaired(official, tmp_path):
    assert run(tmp_path) == 0
    (tmp_path / RTE_FILES[1]).unlink()
    assert run(tmp_path) == 0
    assert_rte(tmp_path)
    damaged = (tmp_path / RTE_FILES[0]).read_bytes()[:-20]  # as many rows as before
    (tmp_path / RTE_FILES[0]).write_bytes(damaged)
    assert dl.count_rows(tmp_path, RTE_FILES[0]) == RTE["train"]
    assert run(tmp_path) == 0
    assert_rte(tmp_path)
    assert len(official.log) == 3


def test_runs_side_by_side_download_once(server, tmp_path, rte_zip):
    server.files["RTE.zip"] = rte_zip
    both = [start(tmp_path, "--source", server.url) for _ in range(2)]
    results = [finish(process) for process in both]
    assert [status for status, _ in results] == [0, 0], results
    assert len(server.log) == 1
    assert_rte(tmp_path)


def test_lock_held_too_long_is_told(official, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dl, "LOCK_SECONDS", 0.1)
    (tmp_path / dl.WORK).mkdir()
    held, leave = threading.Event(), threading.Event()

    def hold():
        with FileLock(tmp_path / dl.WORK / "lock"):
            held.set()
            leave.wait(DEADLINE)

    other = threading.Thread(target=hold)
    other.start()
    try:
        assert held.wait(DEADLINE)
        assert run(tmp_path) == 1
    finally:
        leave.set()
        other.join(DEADLINE)
    assert f"another download still holds {tmp_path}" in capsys.readouterr().err
    assert official.log == []


# Servers that fail


@pytest.mark.parametrize("status", ["500", "503", "429"])
def test_passing_failure_is_retried(official, tmp_path, status):
    official.script = [status]
    assert run(tmp_path) == 0
    assert len(official.log) == 2


def test_lasting_failure_names_address_reason_and_fix(official, tmp_path, capsys):
    official.script = ["500"] * dl.ATTEMPTS
    assert run(tmp_path) == 1
    assert len(official.log) == dl.ATTEMPTS
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"{official.url}/RTE.zip" in last
    assert "HTTP 500" in last
    assert "--source" in last
    assert placed(tmp_path) == []


def test_missing_file_is_not_retried_and_does_not_stop_other_tasks(official, tmp_path, capsys):
    assert run(tmp_path, tasks="WNLI,RTE") == 1
    assert [path for path, _ in official.log] == ["/WNLI.zip", "/RTE.zip"]
    assert f"error: WNLI: {official.url}/WNLI.zip: HTTP 404" in capsys.readouterr().err
    assert_rte(tmp_path)


def test_unreachable_host_stops_at_its_first_task(server, tmp_path, capsys):
    server.shutdown()
    server.server_close()
    assert run(tmp_path, "--source", server.url, tasks="WNLI,RTE") == 1
    out, err = capsys.readouterr()
    assert err.count("new connection: [Errno") == dl.ATTEMPTS
    assert "Max retries" not in err
    assert "error: WNLI" in err
    assert "/RTE.zip" not in err
    assert "missing" in out


def test_silent_server_times_out(official, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dl, "TIMEOUT_SECONDS", (1, 0.05))
    official.script = ["silent"] * dl.ATTEMPTS
    assert run(tmp_path) == 1
    assert "Read timed out" in capsys.readouterr().err
    assert placed(tmp_path) == []


def test_a_server_that_drips_is_given_up(official, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dl, "RATE_SECONDS", 0.3)
    monkeypatch.setattr(dl, "LOWEST_RATE", 10**9)
    official.script = ["drip"] * dl.ATTEMPTS
    assert run(tmp_path) == 1
    err = capsys.readouterr().err
    assert "too slow: " in err
    assert "check the network" in err
    assert placed(tmp_path) == []
    assert len(official.log) == dl.ATTEMPTS


# Checksums


def test_wrong_bytes_are_refused_with_both_sums(official, tmp_path, capsys):
    wrong = zipped(rte_members("wrong"))
    official.files["RTE.zip"] = wrong
    assert run(tmp_path) == 1
    err = capsys.readouterr().err
    for part in (digest(wrong), dl.SHA256["RTE.zip"], f"{official.url}/RTE.zip", "--source"):
        assert part in err
    assert placed(tmp_path) == []
    assert len(official.log) == 1


def test_mirror_is_recorded_on_first_use_and_held_to_it(server, tmp_path, rte_zip, capsys):
    server.files["RTE.zip"] = rte_zip
    assert run(tmp_path, "--source", server.url) == 0
    recorded = json.loads((tmp_path / dl.RECORDS).read_text())
    assert recorded[f"{server.url}/RTE.zip"] == digest(rte_zip)
    changed = zipped(rte_members("changed"))
    server.files["RTE.zip"] = changed
    (tmp_path / RTE_FILES[0]).unlink()
    assert run(tmp_path, "--source", server.url) == 1
    err = capsys.readouterr().err
    assert digest(changed) in err
    assert digest(rte_zip) in err
    assert str(tmp_path / dl.RECORDS) in err
    assert not (tmp_path / RTE_FILES[0]).exists()


def test_unusable_archive_is_not_recorded(server, tmp_path, rte_zip, capsys):
    server.files["WNLI.zip"] = b"<html>log in to the campus network</html>"
    server.files["RTE.zip"] = rte_zip
    assert run(tmp_path, "--source", server.url, tasks="WNLI,RTE") == 1
    assert "WNLI.zip: not the data of GLUE" in capsys.readouterr().err
    recorded = json.loads((tmp_path / dl.RECORDS).read_text())
    assert set(recorded) == {f"{server.url}/RTE.zip", *RTE_FILES}
    assert_rte(tmp_path)


def test_damaged_records_are_told(official, tmp_path, capsys):
    (tmp_path / dl.RECORDS).write_text("{")
    assert run(tmp_path) == 2
    assert f"{tmp_path / dl.RECORDS} is damaged" in capsys.readouterr().err
    assert official.log == []


# Malicious archives


def link(name: str, kind: int = stat.S_IFLNK) -> tuple[zipfile.ZipInfo, bytes]:
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = (kind | 0o777) << 16
    return info, b"/etc/passwd"


def member(name: str) -> tuple[zipfile.ZipInfo, bytes]:
    info = zipfile.ZipInfo("name")
    info.filename = name  # past the constructor's tidying
    return info, b"x"


@pytest.mark.parametrize(
    "extra",
    [
        member("../outside.tsv"),
        member("RTE/../../outside.tsv"),
        member("/outside.tsv"),
        member("..\\outside.tsv"),
        member("RTE\\train.tsv"),
        member("C:outside.tsv"),
        link("RTE/link"),
        link("RTE/device", stat.S_IFCHR),
        link("RTE/train.tsv"),
    ],
    ids=lambda extra: f"{extra[0].filename}-{extra[0].external_attr >> 28}",
)
def test_archive_with_an_unsafe_member_is_refused(server, tmp_path, extra, capsys):
    members = rte_members()
    members.pop(extra[0].filename, None)
    server.files["RTE.zip"] = zipped(members, extra)
    assert run(tmp_path / "data", "--source", server.url) == 1
    err = capsys.readouterr().err
    assert "RTE.zip is refused" in err
    assert repr(extra[0].filename) in err
    assert placed(tmp_path / "data") == []
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def bomb(declared: int | None = None) -> bytes:
    """RTE.zip whose train.tsv unpacks to 11 MB; its size can be declared otherwise."""
    train = b"\0" * 11_000_000
    archive = bytearray(zipped({**rte_members(), "RTE/train.tsv": train}))
    if declared is not None:
        at = archive.index(b"PK\x01\x02")  # the first entry of the central directory
        archive[at + 24 : at + 28] = struct.pack("<L", declared)
    return bytes(archive)


@pytest.mark.parametrize(
    ("declared", "why"),
    [(None, "train.tsv is refused: over"), (100, "Bad CRC-32"), (2**32 - 2, "is refused: over")],
)
def test_zip_bomb_is_refused(server, tmp_path, declared, why, capsys):
    server.files["RTE.zip"] = bomb(declared)
    assert len(server.files["RTE.zip"]) < 1_000_000
    assert run(tmp_path, "--source", server.url) == 1
    assert why in capsys.readouterr().err
    assert placed(tmp_path) == []


def test_oversize_download_is_refused_while_it_comes(official, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dl, "ARCHIVE_BYTES", HALF)
    assert run(tmp_path) == 1
    assert f"RTE.zip.part is refused: over {HALF:,} bytes" in capsys.readouterr().err
    assert len(official.log) == 1


@pytest.mark.parametrize("announced", [5, 11])
def test_copy_keeps_to_the_limit_announced_and_real(tmp_path, announced):
    with pytest.raises(dl.DownloadError, match="over 10 bytes"):
        dl.copy([b"12345", b"67890", b"1"], tmp_path / "file", limit=10, total=announced)
    assert not (tmp_path / "file").exists()


# What a user sees


def test_other_rows_than_official_are_flagged(server, tmp_path, capsys):
    server.files["RTE.zip"] = zipped(rte_members(dev=276))
    assert run(tmp_path, "--source", server.url) == 1
    out, err = capsys.readouterr()
    assert re.search(r"RTE/dev\.tsv +276 +277 +DIFFERS$", out, re.M)
    assert out.count("DIFFERS") == 1
    assert server.url in err
    assert json.loads((tmp_path / dl.RECORDS).read_text()) == {}  # and so not trusted
    server.files["RTE.zip"] = zipped(rte_members())
    assert run(tmp_path, "--source", server.url) == 0


def test_mistakes_are_told_with_their_value_and_exit_2(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for flags, told in {
        ("--tasks", "RTF,foo"): "rtf, foo",
        ("--source", f"{tmp_path}/none"): f"{tmp_path}/none",
        ("--source", "ftp://host"): "ftp://host",
        ("--data_dir", f"{tmp_path}/file/below"): f"{tmp_path}/file/below",
    }.items():
        assert dl.main(["--data_dir", str(tmp_path / "data"), *flags]) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: --")
        assert told in err
        assert err.count("\n") == 1
    assert not (tmp_path / "data").exists()
