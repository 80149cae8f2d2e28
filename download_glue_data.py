"""Download GLUE's nine tasks and its diagnostic set into GLUE's own folders, every byte checked.

    python download_glue_data.py --data_dir glue_data --tasks RTE,MRPC

A killed run leaves nothing half-written in place, and the next one picks up where it stopped.
Addresses: GLUE-baselines' download_glue_data.py (where those of QQP and STS-B are swapped), and
for MRPC's dev ids Hugging Face's glue.py, whose dataset_infos.json has the sums and row counts.
"""

import argparse
import hashlib
import json
import re
import shutil
import stat
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import BinaryIO, NamedTuple

from common.errors import UserError

import requests
from filelock import AcquireReturnProxy, FileLock, Timeout
from tqdm import tqdm

ATTEMPTS = 4
BACKOFF_SECONDS = 1.0  # before the second attempt; doubled before each further one
TIMEOUT_SECONDS = (10, 30)  # to connect, and between two reads
LOCK_SECONDS = 600
CHUNK_BYTES = 1 << 16
ARCHIVE_BYTES = 1 << 30  # MNLI's, the largest, has 0.3e9
ROW_BYTES = 4096  # a row of GLUE averages well under a kilobyte: more smells of a zip bomb
WORK = ".download"  # in data_dir: the lock, started downloads, unpacking
RECORDS = "checksums.json"  # in data_dir
FIX = "run again, or give --source a mirror or a folder that holds the archives"

GLUE = "https://dl.fbaipublicfiles.com/glue/data/"
SENTEVAL = "https://dl.fbaipublicfiles.com/senteval/senteval_data/"
SHA256 = {
    "CoLA.zip": "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff",
    "SST-2.zip": "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
    "msr_paraphrase_train.txt": "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89",
    "msr_paraphrase_test.txt": "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784",
    "mrpc_dev_ids.tsv": "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7",
    "STS-B.zip": "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85",
    "QQP-clean.zip": "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0",
    "MNLI.zip": "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633",
    "QNLIv2.zip": "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5",
    "RTE.zip": "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee",
    "WNLI.zip": "ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46",
    "AX.tsv": "0e13510b1bb14436ff7e2ee82338f0efb0133ecf2e73507a697dc210db3f05fd",
}


class DownloadError(Exception):
    """A failure that is not the user's mistake; the message says what happened and the fix."""


class Task(NamedTuple):
    """The names of a task's archives, and the official rows of the files it consists of."""

    archives: tuple[str, ...]
    rows: dict[str, int]


def task(folder: str, *archives: str, **rows: int) -> Task:
    return Task(archives, {f"{folder}/{split}.tsv": count for split, count in rows.items()})


MRPC = ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt", "mrpc_dev_ids.tsv")
MNLI = {"dev_matched": 9815, "dev_mismatched": 9832, "test_matched": 9796, "test_mismatched": 9847}
TASKS = {
    "CoLA": task("CoLA", "CoLA.zip", train=8551, dev=1043, test=1063),
    "SST-2": task("SST-2", "SST-2.zip", train=67349, dev=872, test=1821),
    "MRPC": task("MRPC", *MRPC, train=3668, dev=408, test=1725),
    "STS-B": task("STS-B", "STS-B.zip", train=5749, dev=1500, test=1379),
    "QQP": task("QQP", "QQP-clean.zip", train=363846, dev=40430, test=390965),
    "MNLI": task("MNLI", "MNLI.zip", train=392702, **MNLI),
    "QNLI": task("QNLI", "QNLIv2.zip", train=104743, dev=5463, test=5463),
    "RTE": task("RTE", "RTE.zip", train=2490, dev=277, test=3000),
    "WNLI": task("WNLI", "WNLI.zip", train=635, dev=71, test=146),
    "AX": task("diagnostic", "AX.tsv", diagnostic=1104),
}
HEADERLESS = {"CoLA/train.tsv", "CoLA/dev.tsv"}


def chunked(file: BinaryIO) -> Iterator[bytes]:
    return iter(partial(file.read, CHUNK_BYTES), b"")


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in chunked(file):
            digest.update(chunk)
    return digest.hexdigest()


def count_rows(data_dir: Path, name: str) -> int:
    """Rows of a GLUE file: its lines that are not blank, less the header; 0 if it is missing."""
    if not (data_dir / name).is_file():
        return 0
    with (data_dir / name).open("rb") as file:
        lines = sum(1 for line in file if line.strip())
    return max(0, lines - (name not in HEADERLESS))


def copy(chunks: Iterable[bytes], target: Path, limit: int, total: int | None, mode="wb") -> None:
    """Write chunks to target under a progress bar; more than limit bytes, said or real, raise."""
    style = {"desc": target.name, "unit": "B", "unit_scale": True, "leave": False, "disable": None}
    with target.open(mode) as file, tqdm(total=total, initial=file.tell(), **style) as bar:
        for chunk in chunks:
            if max(total or 0, file.tell() + len(chunk)) > limit:
                raise DownloadError(f"{target.name} is refused: over {limit:,} bytes; {FIX}")
            bar.update(file.write(chunk))


def transfer(url: str, part: Path) -> bool:
    """Ask once for the bytes of url that part lacks; True if the server resumed, not restarted.

    Raises what requests does, also where fewer bytes come than the server announced.
    """
    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"}  # or Range would not count the file's own bytes
    if have:
        headers["Range"] = f"bytes={have}-"
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response:
        status, length = response.status_code, response.headers.get("Content-Length", "")
        if status == 416:  # part is no beginning of this file
            part.unlink(missing_ok=True)
        if status >= 500 or status in (408, 416, 429):
            raise requests.HTTPError(f"HTTP {status} {response.reason}")
        if status not in (200, 206):
            raise DownloadError(f"{url}: HTTP {status} {response.reason}; check the address: {FIX}")
        resumed = status == 206
        total = int(length) + resumed * have if length.isdigit() else None
        mode = "ab" if resumed else "wb"
        copy(response.iter_content(CHUNK_BYTES), part, ARCHIVE_BYTES, total, mode)
    return resumed


def reason(error: requests.RequestException) -> str:
    """The innermost readable part of what requests wraps around a failed connection."""
    cause = error.args[0] if error.args else error
    cause = getattr(cause, "reason", cause)
    texts = [text for text in getattr(cause, "args", ()) if isinstance(text, str)]
    return (texts or [str(cause)])[0].split("): ", 1)[-1]


def download(url: str, part: Path, known: set[str | None]) -> str:
    """Fetch url into part with retries; returns its SHA-256.

    What an earlier attempt or run left is resumed. Because the file may have changed in between, a
    resumed one is believed only if its sum is known beforehand; if not, it is fetched whole.
    Raises ConnectionError where the host does not answer, DownloadError for everything else.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            resumed = transfer(url, part)
            digest = sha256(part)
            if not resumed or digest in known:
                return digest
            part.unlink()
            failure, why = DownloadError, f"no known sha256 after resuming ({digest})"
        except (requests.ConnectionError, requests.Timeout) as error:
            failure, why = ConnectionError, reason(error)
        except requests.RequestException as error:
            failure, why = DownloadError, reason(error)
        if attempt < ATTEMPTS:
            seconds = BACKOFF_SECONDS * 2 ** (attempt - 1)
            print(f"{url}: {why}; trying again in {seconds:g} s", file=sys.stderr)
            time.sleep(seconds)
    raise failure(f"{url}: {why} ({ATTEMPTS} attempts); {FIX}")


def obtain(name: str, source: str | None, data_dir: Path, fresh: Path, records: dict) -> Path:
    """An archive as a file whose SHA-256 is the published one, or the one of its first use."""
    official = (SENTEVAL if name in MRPC[:2] else GLUE) + name
    if source and "://" not in source:
        path = Path(source, name).resolve()
        address = str(path)
        if not path.is_file():
            raise DownloadError(f"{path} does not exist: put it there, or give another --source")
        digest = sha256(path)
    else:
        address = f"{source.rstrip('/')}/{name}" if source else official
        part = data_dir / WORK / f"{name}.part"
        digest = download(address, part, {SHA256[name], records.get(address)})
        path = part.replace(fresh / name)
    expected, origin = SHA256[name], "published"
    if digest != expected and address != official:
        if address not in records:
            print(f"{address}: not GLUE's own file; its sha256 {digest} is recorded on first use")
        expected = records.setdefault(address, digest)
        origin = f"recorded in {data_dir / RECORDS} (delete that line if the change is wanted)"
    if digest != expected:
        raise DownloadError(f"{address}: sha256 is {digest}, but {expected} is {origin}; {FIX}")
    return path


def unsafe(member: zipfile.ZipInfo) -> bool:
    """Whether a zip member would leave its folder, or is neither a file nor a folder."""
    path = PureWindowsPath(member.orig_filename)  # knows drives and both kinds of slashes
    kind = stat.S_IFMT(member.external_attr >> 16)
    escapes = path.anchor or ".." in path.parts or "\\" in member.orig_filename
    return bool(escapes) or kind not in (0, stat.S_IFREG, stat.S_IFDIR)


def unzip(archive: Path, files: dict[str, int], folder: Path) -> None:
    """Extract files, given with their official rows, and nothing else."""
    with zipfile.ZipFile(archive) as bundle:
        for member in filter(unsafe, bundle.infolist()):
            raise DownloadError(
                f"{archive.name} is refused: its member {member.orig_filename!r} is a link, a "
                f"device or leads out of the folder. Do not use this archive: {FIX}"
            )
        for name, rows in files.items():
            member = bundle.getinfo(name)
            with bundle.open(member) as data:
                copy(chunked(data), folder / name, ROW_BYTES * (rows + 16), member.file_size)


def split_mrpc(train: Path, test: Path, dev_ids: Path, folder: Path) -> None:
    """Split the raw corpus as GLUE's authors do, byte for byte: their header keeps its BOM."""
    read = partial(Path.open, encoding="utf-8")  # universal newlines: CRLF becomes LF
    write = partial(Path.open, mode="w", encoding="utf-8", newline="\n")
    with read(dev_ids) as rows:
        ids = {tuple(row.strip().split("\t")) for row in rows}
    with read(train) as rows, write(folder / "train.tsv") as rest, write(folder / "dev.tsv") as dev:
        header = rows.readline()
        rest.write(header)
        dev.write(header)
        for row in rows:
            _, id1, id2, _, _ = row.strip().split("\t")
            (dev if (id1, id2) in ids else rest).write(row.strip() + "\n")
    with read(test) as rows, write(folder / "test.tsv") as out:
        rows.readline()
        out.write("index\t#1 ID\t#2 ID\t#1 String\t#2 String\n")
        for index, row in enumerate(rows):
            _, id1, id2, first, second = row.strip().split("\t")
            out.write(f"{index}\t{id1}\t{id2}\t{first}\t{second}\n")


def unpack(paths: list[Path], rows: dict[str, int], folder: Path) -> None:
    """Make a task's files in folder from its archives: one zip, one TSV, or the three of MRPC."""
    target = folder / next(iter(rows))
    target.parent.mkdir()
    try:
        if len(paths) > 1:
            split_mrpc(*paths, target.parent)
        elif paths[0].suffix == ".zip":
            unzip(paths[0], rows, folder)
        else:
            shutil.copyfile(paths[0], target)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, ValueError) as error:
        names = " ".join(path.name for path in paths)
        raise DownloadError(f"{names}: not the data of GLUE ({error}); {FIX}") from error


def fetch(task: Task, data_dir: Path, source: str | None, records: dict[str, str]) -> None:
    """Put a task's files in place, each by one atomic rename, once all are whole and recorded."""
    with tempfile.TemporaryDirectory(prefix="fresh-", dir=data_dir / WORK) as folder:
        fresh, new = Path(folder), dict(records)
        paths = [obtain(name, source, data_dir, fresh, new) for name in task.archives]
        unpack(paths, task.rows, fresh)
        new |= {name: sha256(fresh / name) for name in task.rows}
        (fresh / RECORDS).write_text(json.dumps(new, indent=1), encoding="utf-8")
        (fresh / RECORDS).replace(data_dir / RECORDS)
        records.update(new)
        for name in task.rows:
            (data_dir / name).parent.mkdir(exist_ok=True)
            (fresh / name).replace(data_dir / name)


def complete(task: Task, data_dir: Path, records: dict[str, str]) -> bool:
    """Whether every file has its official rows and, where recorded, its sum."""
    return all(
        count_rows(data_dir, name) == rows and records.get(name) in (None, sha256(data_dir / name))
        for name, rows in task.rows.items()
    )


def summarise(tasks: dict[str, Task], data_dir: Path) -> bool:
    """Print each file's rows against the official ones; True if all agree."""
    print(f"\n{'file':28}{'rows':>9}{'official':>10}")
    agree = True
    for name, official in (row for task in tasks.values() for row in task.rows.items()):
        rows = count_rows(data_dir, name)
        agree &= rows == official
        verdict = "" if rows == official else "  DIFFERS" if rows else "  missing"
        print(f"{name:28}{rows:9}{official:10}{verdict}")
    return agree


def read_records(path: Path) -> dict[str, str]:
    """SHA-256 by file name, and by address for archives whose sum nobody has published."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); delete it to record sums anew") from error


def lock(data_dir: Path) -> AcquireReturnProxy:
    """Make data_dir where missing and hold it until the returned context ends."""
    try:
        (data_dir / WORK).mkdir(parents=True, exist_ok=True)
        held = FileLock(data_dir / WORK / "lock")
        try:
            return held.acquire(timeout=0)
        except Timeout:
            print(f"another download holds {data_dir}; waiting up to {LOCK_SECONDS} s for it")
            return held.acquire(timeout=LOCK_SECONDS)
    except Timeout as error:
        raise DownloadError(f"another download still holds {data_dir}; stop it, or wait") from error
    except OSError as error:
        raise UserError(f"--data_dir {data_dir}: {error}; give one you can write to") from error


def download_tasks(tasks: dict[str, Task], data_dir: Path, source: str | None = None) -> bool:
    """Bring tasks into data_dir, leaving complete ones alone; True if all is as GLUE has it.

    source is the address or folder to take the archives from, by default GLUE's own.
    """
    failures = []
    with lock(data_dir):
        for leftover in (data_dir / WORK).glob("fresh-*"):
            shutil.rmtree(leftover)
        records = read_records(data_dir / RECORDS)
        for name, task in tasks.items():
            if complete(task, data_dir, records):
                print(f"{name}: already complete in {data_dir}, skipped")
                continue
            try:
                fetch(task, data_dir, source, records)
                print(f"{name}: downloaded")
            except (DownloadError, ConnectionError) as error:
                failures.append(f"{name}: {error}")
                if isinstance(error, ConnectionError):  # the next task would fail the same way
                    break
        if not summarise(tasks, data_dir) and not failures:
            failures = [f"{source or GLUE} has other rows than GLUE: give another --source"]
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return not failures


def chosen(text: str) -> dict[str, Task]:
    names = {name.lower(): name for name in TASKS}
    wanted = [name.strip().lower() for name in text.split(",")]
    unknown = [name for name in wanted if name not in {*names, "all"}]
    if unknown:
        raise UserError(f"--tasks: no task {', '.join(unknown)}; choose from all,{','.join(TASKS)}")
    return {names[key]: TASKS[names[key]] for key in (names if "all" in wanted else wanted)}


def main(argv: list[str] | None = None) -> int:
    """Run the command; exit status 0 if all is complete, 1 on failure, 2 on bad usage."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data_dir", required=True, type=Path, help="where the folders go")
    parser.add_argument("--tasks", default="all", help=f"all, or some of {','.join(TASKS)}")
    parser.add_argument("--source", help="address or folder to take the archives from")
    args = parser.parse_args(argv)
    try:
        tasks = chosen(args.tasks)
        is_url = re.match(r"https?://[^/\s]", args.source or GLUE)
        if not is_url and not Path(args.source).is_dir():
            raise UserError(f"--source {args.source}: neither a folder nor an http(s) address")
        return 0 if download_tasks(tasks, args.data_dir, args.source) else 1
    except KeyboardInterrupt:
        print("interrupted: whole tasks are kept; run again to resume", file=sys.stderr)
        return 130
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (DownloadError, OSError) as error:
        print(f"error: {error}; files in {args.data_dir} are whole or absent", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
