"""Read documents of many formats as text with places, and write tables.

>>> from slipform.files import read_file, write_table
"""

from __future__ import annotations

from slipform.files.document import Box, Document
from slipform.files.reading import read_file
from slipform.files.tables import write_table

__all__ = ["Box", "Document", "read_file", "write_table"]
