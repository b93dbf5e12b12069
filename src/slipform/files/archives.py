"""Refuse archives that unpack to far more than their size."""

from __future__ import annotations

import zipfile
from io import BytesIO
from typing import Final

from slipform.errors import ConfigError

_MAX_RATIO: Final = 100
_MAX_UNPACKED: Final = 1_000_000_000
_SMALL: Final = 10_000_000
"""An archive that unpacks to less is read whatever its ratio."""


def check_archive(data: bytes) -> None:
    """Raise `ConfigError` for a ZIP file (DOCX, XLSX, ODS) that is damaged or too large unpacked; ignore other data."""
    stream = BytesIO(data)
    if not zipfile.is_zipfile(stream):
        return
    try:
        with zipfile.ZipFile(stream) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except zipfile.BadZipFile as error:
        raise ConfigError("This file is damaged", hint="Open it and save it anew.") from error
    if size > _MAX_UNPACKED or (size > _SMALL and size > _MAX_RATIO * len(data)):
        raise ConfigError(
            f"This file unpacks to {size:,} bytes, {size // len(data)} times its size",
            hint="It is not read: such files are made to exhaust memory.",
        )
