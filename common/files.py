"""Files that are there whole or not at all, and archives whose bytes depend on content alone."""

import contextlib
import os
import shutil
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a path to write to; what is there at the end becomes `path`, in one move.

    After an exception it is removed, and `path` stays as it was.
    """
    part = path.with_name(path.name + ".part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that it is there whole or not at all, even after a power cut."""
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with whole(path) as part, part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_zip(path: Path, contents: Mapping[str, bytes], executable: Collection[str] = ()) -> None:
    """Write an archive of name -> content, whole or not at all; equal contents, equal bytes."""
    with whole(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in sorted(contents.items()):
            member = zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0))
            mode = 0o100755 if name in executable else 0o100644
            member.create_system, member.external_attr = 3, mode << 16
            bundle.writestr(member, content, zipfile.ZIP_DEFLATED, 6)


def save_model(model, tokenizer, folder: Path) -> None:
    """`save_pretrained` into `folder`, each file whole or not at all."""
    part = folder / "saving.part"
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    for file in part.iterdir():
        file.replace(folder / file.name)
    part.rmdir()
