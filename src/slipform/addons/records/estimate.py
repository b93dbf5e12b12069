"""Estimate what an extraction will take, without a call."""

from __future__ import annotations

import re
from collections import Counter

from slipform.addons.batch.call import resolved_models
from slipform.addons.records.lines import LineTable
from slipform.addons.records.prompts import messages_for
from slipform.addons.records.result import Estimate
from slipform.addons.records.running import Extractor
from slipform.addons.records.segments import cut_lines
from slipform.addons.records.session import PIECE
from slipform.engine.planning import named_price
from slipform.files.document import Document
from slipform.ir import Usage
from slipform.ir.response import guess_tokens
from slipform.prices import cost_of
from slipform.schema.examples import example
from slipform.schema.summary import summarize

_LATER_ROUNDS = 1.15
_TOKENS_PER_SECOND = 60
_CALL_SECONDS = 1.0
_DIGIT = re.compile(r"\d")
_FURNITURE_TIMES = 3


def estimate(extractor: Extractor, source: Document, concurrency: int) -> Estimate:
    """Return about how many pieces, records and tokens there will be, and the cost where a price is known."""
    shapes = extractor.shapes
    table = LineTable(source.text)
    pieces = len(shapes) * len(list(cut_lines(table, (0, len(table)), PIECE, ())))
    records = _count_records(table) if shapes[0].item is not None else 1
    overhead = 0
    answer = 0
    for shape in shapes:
        system = messages_for("", extractor.instructions, has_list=shape.item is not None)[0].text
        schema_tokens = guess_tokens(summarize(shape.question.document).text)
        overhead += guess_tokens(system) + schema_tokens
        document = shape.whole.document if shape.item is None else shape.item.document
        instance = example(document)
        answer += schema_tokens if instance is None else guess_tokens(instance.text)
    source_tokens = len(shapes) * guess_tokens(source.text)
    usage = Usage(
        input=int((source_tokens + pieces * overhead // len(shapes)) * _LATER_ROUNDS),
        output=int(records * answer * _LATER_ROUNDS),
    )
    names = resolved_models(extractor.router, extractor.models)
    cost = cost_of(named_price(extractor.options.prices, extractor.router, names[0]), usage) if names else None
    calls = max(1.0, pieces / concurrency)
    seconds = calls * (_CALL_SECONDS + (usage.output or 0) / max(1, pieces) / _TOKENS_PER_SECOND)
    return Estimate(pieces, records, usage.input or 0, usage.output or 0, cost, round(seconds, 1))


def _count_records(table: LineTable) -> int:
    """Return how many lines have the commonest signature, repeated lines and lines without a digit left out.

    A text without digits has a record for each of its commonest lines.
    """
    times = Counter(line.text for line in table.lines)
    distinct = [line for line in table.lines if line.features and times[line.text] < _FURNITURE_TIMES]
    telling = [line for line in distinct if _DIGIT.search(line.text)] or distinct
    common = Counter(line.signature for line in telling).most_common(1)
    return common[0][1] if common else 0
