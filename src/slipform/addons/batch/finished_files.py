"""Remember which outputs of `run` are up to date."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from slipform.addons.batch.file_rows import file_digest
from slipform.errors import ConfigError
from slipform.files.replacing import writing

RECORD_NAME: Final = ".slipform-run.jsonl"
"""The file in a folder of outputs that says what each of them was made from."""


class _Finished(msgspec.Struct, frozen=True):
    """An output, the digest of all it was made from, and the model that answered."""

    output: str
    digest: str
    model: str


class FinishedFiles:
    """The outputs that earlier runs with the same instructions, schema and model have written."""

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint

    def up_to_date(self, targets: Mapping[Path, Path]) -> dict[Path, str]:
        """Return the inputs whose output is there and made from the same file, each with the model that answered."""
        records: dict[Path, dict[str, _Finished]] = {}
        models: dict[Path, str] = {}
        for source, target in targets.items():
            if not target.exists():
                continue
            if target.parent not in records:
                records[target.parent] = _read_records(target.parent / RECORD_NAME)
            record = records[target.parent].get(target.name)
            if record is not None and record.digest == self._digest(source):
                models[source] = record.model
        return models

    def record(self, source: Path, target: Path, model: str) -> None:
        """Append a line for this output to the record of its folder."""
        path = target.parent / RECORD_NAME
        line = msgspec.json.encode(_Finished(target.name, self._digest(source), model))
        with writing(path), path.open("ab") as file:
            file.write(line + b"\n")

    def _digest(self, source: Path) -> str:
        try:
            content = file_digest(source)
        except ConfigError:  # the file itself is the error of its own call
            return ""
        return blake2b(f"{content} {self._fingerprint}".encode(), digest_size=16).hexdigest()


def _read_records(path: Path) -> dict[str, _Finished]:
    """Return the last record of each output; lines that cannot be read are ignored, their outputs are rebuilt."""
    records: dict[str, _Finished] = {}
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return records
    for line in lines:
        try:
            record = msgspec.json.decode(line, type=_Finished)
        except msgspec.DecodeError:
            continue
        records[record.output] = record
    return records
