"""Turn files and folders into the rows of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from glob import glob, has_magic
from hashlib import blake2b
from pathlib import Path
from typing import Final

from slipform.addons.batch.rows import READERS, Row
from slipform.errors import ConfigError
from slipform.files.reading import read_file

FILE_COLUMNS: Final = ("file", "text")
"""The columns of a row that is a file."""
OUTPUT_SUFFIXES: Final = (".out.json", ".out.txt", ".journal", ".failures.jsonl", ".gaps.jsonl")
"""How the files that slipform writes beside its inputs end."""
_CHUNK: Final = 1 << 20


def is_dataset(sources: Sequence[Path]) -> bool:
    """Return whether the input is one file of rows, and not files that are a row each.

    >>> is_dataset([Path("people.csv")]), is_dataset([Path("letter.pdf")])
    (True, False)
    """
    if len(sources) != 1 or is_pattern(sources[0]):
        return False
    return sources[0].suffix.lower() in READERS and not sources[0].is_dir()


def is_pattern(source: Path) -> bool:
    """Return whether a path is a pattern such as `letters/*.pdf`, and not a file of that name."""
    return has_magic(str(source)) and not source.exists()


def list_files(sources: Iterable[Path], *, apart_from: Iterable[Path] = ()) -> tuple[Path, ...]:
    """Return the files, those of folders and patterns by name; hidden ones and slipform's outputs are left out.

    Raises `ConfigError` for a path that does not exist, and when no file is left.
    """
    files: dict[Path, None] = {}
    for source in sources:
        if source.is_dir():
            files.update(dict.fromkeys(_files_below(source)))
        elif is_pattern(source):
            files.update(dict.fromkeys(_files_matching(source)))
        elif not source.exists():
            raise ConfigError("This file does not exist", where=str(source))
        elif not is_output(source):
            files[source] = None
    outputs = {path.resolve() for path in apart_from}
    files = {path: None for path in files if path.resolve() not in outputs}
    if not files:
        raise ConfigError("No files to read", hint="Name files, or a folder that contains some.")
    return tuple(files)


def _files_below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not is_hidden and not is_output(path):
            yield path


def _files_matching(pattern: Path) -> Iterator[Path]:
    """Yield the files that a pattern matches; most shells expand patterns before slipform sees them."""
    matching = sorted(Path(each) for each in glob(str(pattern), recursive=True))  # noqa: PTH207 - Path.glob wants a root
    if not matching:
        raise ConfigError("No file matches the pattern", where=str(pattern))
    yield from (path for path in matching if path.is_file() and not is_output(path))


def is_output(path: Path) -> bool:
    """Return whether slipform wrote this file beside an input."""
    return path.name.endswith(OUTPUT_SUFFIXES)


def file_rows(files: Iterable[Path]) -> Iterator[Row]:
    """Yield a row for each file: its path, and a digest by which a changed file is noticed."""
    for path in files:
        yield {"file": str(path), "digest": file_digest(path)}


def file_digest(path: Path) -> str:
    """Return a digest of a file's bytes; raises `ConfigError` when it cannot be read."""
    digest = blake2b(digest_size=16)
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise ConfigError(f"This file cannot be read: {error.strerror or error}", where=str(path)) from error
    return digest.hexdigest()


def read_row(row: Row) -> Row:
    """Return the row of a file with its text; raises `ConfigError` for a file that cannot be read."""
    return dict(zip(FILE_COLUMNS, (row["file"], read_file(row["file"]).text), strict=True))
