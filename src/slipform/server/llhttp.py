"""The parser of requests, apart from what is compiled: it need not be there when that is done."""

from __future__ import annotations

from typing import Any

import httptools

BadRequestError: type[Exception] = httptools.HttpParserError
"""What came in is no request. Its context tells what was raised where the parser called us, if that was it."""
UpgradeError: type[Exception] = httptools.HttpParserUpgrade
"""Another protocol was asked for; the argument says where it would begin."""


def request_parser(told: object) -> Any:
    """A parser that calls the `on_...` methods of `told` for what it finds in the bytes that `feed_data` is given."""
    parser = httptools.HttpRequestParser(told)
    # What follows the last request is not answered; that is no reason not to answer the request.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def path_and_query(url: bytes) -> tuple[bytes, bytes]:
    """Of a target that is a whole URL, or `*`."""
    parsed = httptools.parse_url(url)
    return parsed.path or b"/", parsed.query or b""
