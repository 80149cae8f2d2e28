"""Download GLUE's nine tasks and its diagnostic set, in GLUE's folders, every byte checked.

    python download_glue_data.py --data_dir glue_data --tasks RTE,MRPC

A killed run leaves no half-written file in place, and the next run resumes.
Addresses: GLUE-baselines' download_glue_data.py (where those of QQP and STS-B are swapped), and
for MRPC's dev ids Hugging Face's glue.py, whose dataset_infos.json has the sums and row counts.
"""

import argparse
import hashlib
import json
import lzma
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
from typing import IO, NamedTuple

from common.errors import UserError

import requests
import urllib3
from filelock import AcquireReturnProxy, FileLock, Timeout
from tqdm import tqdm

ATTEMPTS = 4
BACKOFF_SECONDS = 1.0  # before the second attempt; doubled before each further one
TIMEOUT_SECONDS = (10, 30)  # to connect, and between reads
LOWEST_RATE = 1000  # bytes a second, on average over RATE_SECONDS: slower servers are given up
RATE_SECONDS = 30
LOCK_SECONDS = 600
CHUNK_BYTES = 1 << 16
ARCHIVE_BYTES = 1 << 30  # MNLI's, the largest, has 0.3e9
ROW_BYTES = 4096  # GLUE's rows average well under a kilobyte; more suggests a zip bomb
DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError)  # what reading an archive may raise
DAMAGE += (EOFError, KeyError, RuntimeError, ValueError)
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
    """A failure that is not a user error; the message says what happened and what to do."""


class GlueFiles(NamedTuple):
    """One GLUE task: its archives, and its files with their official numbers of rows."""

    archives: tuple[str, ...]
    rows: dict[str, int]


def glue_files(folder: str, *archives: str, **rows: int) -> GlueFiles:
    """The files of a task, given as split=rows."""
    return GlueFiles(archives, {f"{folder}/{split}.tsv": count for split, count in rows.items()})


MRPC = ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt", "mrpc_dev_ids.tsv")
MNLI = {"dev_matched": 9815, "dev_mismatched": 9832, "test_matched": 9796, "test_mismatched": 9847}
TASKS = {
    "CoLA": glue_files("CoLA", "CoLA.zip", train=8551, dev=1043, test=1063),
    "SST-2": glue_files("SST-2", "SST-2.zip", train=67349, dev=872, test=1821),
    "MRPC": glue_files("MRPC", *MRPC, train=3668, dev=408, test=1725),
    "STS-B": glue_files("STS-B", "STS-B.zip", train=5749, dev=1500, test=1379),
    "QQP": glue_files("QQP", "QQP-clean.zip", train=363846, dev=40430, test=390965),
    "MNLI": glue_files("MNLI", "MNLI.zip", train=392702, **MNLI),
    "QNLI": glue_files("QNLI", "QNLIv2.zip", train=104743, dev=5463, test=5463),
    "RTE": glue_files("RTE", "RTE.zip", train=2490, dev=277, test=3000),
    "WNLI": glue_files("WNLI", "WNLI.zip", train=635, dev=71, test=146),
    "AX": glue_files("diagnostic", "AX.tsv", diagnostic=1104),
}
HEADERLESS = {"CoLA/train.tsv", "CoLA/dev.tsv"}


def chunked(file: IO[bytes]) -> Iterator[bytes]:
    """The rest of a file, in chunks."""
    return iter(partial(file.read, CHUNK_BYTES), b"")


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
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
    """Write chunks to target under a progress bar.

    Raises DownloadError above `limit` bytes, whether announced (`total`) or received.
    """
    style = {"desc": target.name, "unit": "B", "unit_scale": True, "leave": False, "disable": None}
    with target.open(mode) as file, tqdm(total=total, initial=file.tell(), **style) as bar:
        for chunk in chunks:
            if max(total or 0, file.tell() + len(chunk)) > limit:
                target.unlink()
                raise DownloadError(f"{target.name} is refused: over {limit:,} bytes; {FIX}")
            bar.update(file.write(chunk))


def transfer(url: str, part: Path) -> bool:
    """Request once the bytes of url that part lacks; True if the server resumed, not restarted.

    Raises what requests raises, also when fewer bytes arrive than the server announced.
    """
    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"}  # or Range would not count the file's own bytes
    if have:
        headers["Range"] = f"bytes={have}-"
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response:
        status, length = response.status_code, response.headers.get("Content-Length", "")
        if status == 416:  # part is not the beginning of this file
            part.unlink(missing_ok=True)
        if status >= 500 or status in (408, 416, 429):
            raise requests.HTTPError(f"HTTP {status} {response.reason}")
        if status not in (200, 206):
            raise DownloadError(f"{url}: HTTP {status} {response.reason}; check the address: {FIX}")
        resumed = status == 206
        total = int(length) + resumed * have if length.isdigit() else None
        mode = "ab" if resumed else "wb"
        copy(arriving(response.raw), part, ARCHIVE_BYTES, total, mode)
    return resumed


def arriving(raw: urllib3.HTTPResponse) -> Iterator[bytes]:
    """The chunks of a body as they arrive; raises what requests raises, also if they are too slow.

    A server that sends a byte now and then keeps every single read below its timeout.
    """
    began, received = time.monotonic(), 0
    try:
        while chunk := raw.read1(CHUNK_BYTES):
            yield chunk
            received += len(chunk)
            seconds = time.monotonic() - began
            if seconds > RATE_SECONDS:
                if received < LOWEST_RATE * seconds:
                    raise requests.ConnectionError(
                        f"too slow: {received:,} bytes in {seconds:.0f} s; check the network"
                    )
                began, received = time.monotonic(), 0
    except urllib3.exceptions.ReadTimeoutError as error:
        raise requests.ConnectionError(error) from None
    except urllib3.exceptions.HTTPError as error:
        raise requests.exceptions.ChunkedEncodingError(error) from None


def reason(error: requests.RequestException) -> str:
    """The innermost readable part of what requests wraps around a failed connection."""
    cause = error.args[0] if error.args else error
    cause = getattr(cause, "reason", cause)
    texts = [text for text in getattr(cause, "args", ()) if isinstance(text, str)]
    return (texts or [str(cause)])[0].split("): ", 1)[-1]


def download(url: str, part: Path, known: set[str | None]) -> str:
    """Fetch url into part with retries; returns its SHA-256.

    Resumes what an earlier attempt or run has downloaded. As the file may have changed meanwhile, a
    resumed one is accepted only if its checksum is known; otherwise it is fetched from the start.
    Raises ConnectionError if the host does not respond, DownloadError for everything else.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            resumed = transfer(url, part)
            digest = sha256(part)
            if not resumed or digest in known:
                return digest
            part.unlink()
            failure, why = DownloadError, f"unknown sha256 after resuming ({digest})"
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
            raise DownloadError(
                f"{path} does not exist: put the archive there, or give another --source"
            )
        digest = sha256(path)
    else:
        address = f"{source.rstrip('/')}/{name}" if source else official
        part = data_dir / WORK / f"{name}.part"
        digest = download(address, part, {SHA256[name], records.get(address)})
        path = part.replace(fresh / name)
    expected, origin = SHA256[name], "published"
    if digest != expected and address != official:
        if address not in records:
            print(
                f"{address}: not GLUE's own file; its sha256 {digest} is recorded "
                "if its rows are GLUE's"
            )
        expected = records.setdefault(address, digest)
        origin = f"recorded in {data_dir / RECORDS} (delete that line to accept the change)"
    if digest != expected:
        raise DownloadError(f"{address}: sha256 is {digest}, but {expected} is {origin}; {FIX}")
    return path


def is_unsafe(member: zipfile.ZipInfo) -> bool:
    """Whether a zip member would be written outside, or is neither a file nor a folder."""
    path = PureWindowsPath(member.orig_filename)  # knows drives and both kinds of slashes
    kind = stat.S_IFMT(member.external_attr >> 16)
    escapes = path.anchor or ".." in path.parts or "\\" in member.orig_filename
    return bool(escapes) or kind not in (0, stat.S_IFREG, stat.S_IFDIR)


def unzip(archive: Path, files: dict[str, int], folder: Path) -> None:
    """Extract the given files (name -> official rows), and nothing else.

    Raises DownloadError for an archive with an unsafe member, or with a file far too large.
    """
    with zipfile.ZipFile(archive) as bundle:
        for member in filter(is_unsafe, bundle.infolist()):
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
            train, test, dev_ids = paths
            split_mrpc(train, test, dev_ids, target.parent)
        elif paths[0].suffix == ".zip":
            unzip(paths[0], rows, folder)
        else:
            shutil.copyfile(paths[0], target)
    except DAMAGE as error:
        names = " ".join(path.name for path in paths)
        raise DownloadError(f"{names}: not the data of GLUE ({error}); {FIX}") from error


def fetch(files: GlueFiles, data_dir: Path, source: str | None, records: dict[str, str]) -> None:
    """Move a task's files into place by atomic renames, once all are complete and recorded."""
    with tempfile.TemporaryDirectory(prefix="fresh-", dir=data_dir / WORK) as folder:
        fresh, new = Path(folder), dict(records)
        paths = [obtain(name, source, data_dir, fresh, new) for name in files.archives]
        unpack(paths, files.rows, fresh)
        if all(count_rows(fresh, name) == rows for name, rows in files.rows.items()):
            new |= {name: sha256(fresh / name) for name in files.rows}
        else:
            new = dict(records)  # what has other rows than GLUE's is not trusted the next time
        (fresh / RECORDS).write_text(json.dumps(new, indent=1), encoding="utf-8")
        (fresh / RECORDS).replace(data_dir / RECORDS)
        records.update(new)
        for name in files.rows:
            (data_dir / name).parent.mkdir(exist_ok=True)
            (fresh / name).replace(data_dir / name)


def is_complete(files: GlueFiles, data_dir: Path, records: dict[str, str]) -> bool:
    """Whether every file has its official rows and, if one is recorded, its checksum."""
    return all(
        count_rows(data_dir, name) == rows and records.get(name) in (None, sha256(data_dir / name))
        for name, rows in files.rows.items()
    )


def print_summary(tasks: dict[str, GlueFiles], data_dir: Path) -> bool:
    """Print each file's rows beside the official ones; True if all agree."""
    print(f"\n{'file':28}{'rows':>9}{'official':>10}")
    agree = True
    for name, official in (row for files in tasks.values() for row in files.rows.items()):
        rows = count_rows(data_dir, name)
        agree &= rows == official
        verdict = "" if rows == official else "  DIFFERS" if rows else "  missing"
        print(f"{name:28}{rows:9}{official:10}{verdict}")
    return agree


def read_records(path: Path) -> dict[str, str]:
    """SHA-256 by file name, and by address for archives whose checksum is not published."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path} is damaged ({error}); delete it to record the checksums again"
        ) from error


def lock(data_dir: Path) -> AcquireReturnProxy:
    """Create data_dir if it is missing, and lock it until the returned context ends."""
    try:
        (data_dir / WORK).mkdir(parents=True, exist_ok=True)
        held = FileLock(data_dir / WORK / "lock")
        try:
            return held.acquire(timeout=0)
        except Timeout:
            print(f"another download holds {data_dir}; waiting up to {LOCK_SECONDS} s")
            return held.acquire(timeout=LOCK_SECONDS)
    except Timeout as error:
        raise DownloadError(f"another download still holds {data_dir}; stop it, or wait") from error
    except OSError as error:
        raise UserError(f"--data_dir {data_dir}: {error}; choose a writable folder") from error


def download_tasks(tasks: dict[str, GlueFiles], data_dir: Path, source: str | None = None) -> bool:
    """Download tasks into data_dir, except complete ones; True if all files have GLUE's rows.

    `source` is the address or folder that holds the archives, by default GLUE's.
    """
    failures = []
    with lock(data_dir):
        for leftover in (data_dir / WORK).glob("fresh-*"):
            shutil.rmtree(leftover)
        records = read_records(data_dir / RECORDS)
        for name, files in tasks.items():
            if is_complete(files, data_dir, records):
                print(f"{name}: already complete in {data_dir}, skipped")
                continue
            try:
                fetch(files, data_dir, source, records)
                print(f"{name}: downloaded")
            except (DownloadError, ConnectionError) as error:
                failures.append(f"{name}: {error}")
                if isinstance(error, ConnectionError):  # the next task would fail the same way
                    break
        if not print_summary(tasks, data_dir) and not failures:
            failures = [
                f"{source or GLUE} has different numbers of rows than GLUE: give another --source"
            ]
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return not failures


def parse_tasks(text: str) -> dict[str, GlueFiles]:
    """The tasks of a comma-separated list; raises UserError for unknown ones."""
    names = {name.lower(): name for name in TASKS}
    wanted = [name.strip().lower() for name in text.split(",")]
    unknown = [name for name in wanted if name not in {*names, "all"}]
    if unknown:
        raise UserError(
            f"--tasks: there is no task {', '.join(unknown)}; choose from all,{','.join(TASKS)}"
        )
    return {names[key]: TASKS[names[key]] for key in (names if "all" in wanted else wanted)}


def main(argv: list[str] | None = None) -> int:
    """Run the command; exit status 0 if all is complete, 1 on failure, 2 on bad usage."""
    parser = argparse.ArgumentParser(description="Download GLUE, every byte checked.")
    parser.add_argument("--data_dir", required=True, type=Path, help="folder to download to")
    parser.add_argument(
        "--tasks", default="all", help=f"all (the default), or some of {','.join(TASKS)}"
    )
    parser.add_argument(
        "--source", help="address or folder that holds the archives (default: GLUE's)"
    )
    args = parser.parse_args(argv)
    try:
        tasks = parse_tasks(args.tasks)
        is_url = re.match(r"https?://[^/\s]", args.source or GLUE)
        if not is_url and not Path(args.source).is_dir():
            raise UserError(f"--source {args.source}: is neither a folder nor an http(s) address")
        return 0 if download_tasks(tasks, args.data_dir, args.source) else 1
    except KeyboardInterrupt:
        print("interrupted: complete tasks are kept; run again to resume", file=sys.stderr)
        return 130
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (DownloadError, OSError) as error:
        print(
            f"error: {error}; every file in {args.data_dir} is complete or absent", file=sys.stderr
        )
        return 1


if __name__ == "__main__":
    sys.exit(main())
