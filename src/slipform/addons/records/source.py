"""Read what records are extracted from: a text, a file, bytes, an attachment, or a list of these."""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from slipform.errors import ConfigError
from slipform.files.document import Document, Word
from slipform.files.reading import read_bytes, read_file, render_pages
from slipform.ir import Media
from slipform.library.messages import image, sniff

AnySource: TypeAlias = "Document | str | Path | bytes | Media | Sequence[Any]"
_BETWEEN = "\n\f"
_MOST_IMAGES = 200
"""Scanned pages of one file that are rendered."""
_DOTS_PER_INCH = 150


def document_of(source: AnySource) -> Document:
    r"""Return the source as one document; several are joined as pages.

    >>> document_of(["one", "two"]).text
    'one\n\x0ctwo'
    """
    if isinstance(source, Document):
        return source
    if isinstance(source, str):
        return _with_pages(Document(source, name="text"))
    if isinstance(source, Path):
        return _document_of_file(source)
    if isinstance(source, bytes):
        return _document_of_bytes(source, "bytes")
    if isinstance(source, Media):
        return _read_media(source)
    if isinstance(source, list | tuple):
        return _joined([document_of(part) for part in source])
    raise ConfigError(
        f"Records cannot be extracted from {type(source).__name__}",
        hint="Give a text, a Path, bytes, slipform.file(…), or a list of these.",
    )


def _document_of_file(path: Path) -> Document:
    if (mimetypes.guess_type(path.name)[0] or "").startswith("image/"):
        return _of_image(image(path).data or b"", path.name)
    document = _with_pages(read_file(path))
    return _with_images(document, path.read_bytes()) if document.scanned_pages else document


def _document_of_bytes(data: bytes, name: str) -> Document:
    if (sniff(data) or "").startswith("image/"):
        return _of_image(data, name)
    return _with_images(_with_pages(read_bytes(data, name)), data)


def _of_image(data: bytes, name: str) -> Document:
    """Return an image as a document with one page that has no text."""
    return Document("", name, page_starts=(0,), scanned_pages=(1,), images={1: data})


def _with_images(document: Document, data: bytes) -> Document:
    """Return a document with the images of its scanned pages."""
    numbers = document.scanned_pages[:_MOST_IMAGES]
    if not numbers:
        return document
    return msgspec.structs.replace(document, images=render_pages(data, numbers, _DOTS_PER_INCH))


def _with_pages(document: Document) -> Document:
    """Return a text with the pages that form feeds make."""
    if document.page_starts or "\f" not in document.text:
        return document
    starts = [0, *(at + 1 for at, sign in enumerate(document.text) if sign == "\f")]
    return msgspec.structs.replace(document, page_starts=tuple(starts))


def _read_media(media: Media) -> Document:
    if media.data is None:
        raise ConfigError("Records are extracted from text, not from an address", hint="Give the file as a Path.")
    return _document_of_bytes(media.data, media.name or "file")


def _joined(documents: Sequence[Document]) -> Document:
    if len(documents) == 1:
        return documents[0]
    words: list[Word] = []
    cells: list[tuple[int, str]] = []
    starts: list[int] = []
    scanned: list[int] = []
    images: dict[int, bytes] = {}
    at = 0
    for document in documents:
        pages = len(starts)
        starts += [at + start for start in document.page_starts or (0,)]
        scanned += [pages + page for page in document.scanned_pages]
        images |= {pages + page: data for page, data in document.images.items()}
        for word in document.words:
            box = word.box._replace(page=pages + word.box.page)
            words.append(Word(word.start + at, word.end + at, box))
        cells += [(at + start, name) for start, name in document.cells]
        at += len(document.text) + len(_BETWEEN)
    text = _BETWEEN.join(document.text for document in documents)
    names = ", ".join(dict.fromkeys(document.name for document in documents))
    return Document(text, names or "text", tuple(starts), tuple(words), tuple(cells), tuple(scanned), images)


def digest_of(document: Document) -> str:
    """Return a hash of the text and of the images in place of text."""
    digest = blake2b(document.text.encode("utf-8", "surrogatepass"), digest_size=16)
    for page, data in sorted(document.images.items()):
        digest.update(b"%d" % page + data)
    return digest.hexdigest()
