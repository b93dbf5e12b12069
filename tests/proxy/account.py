"""A vendor's account for the tests of forwarded endpoints: it keeps files, batches, responses and conversations."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

from slipform.testing import FakeVendor, Raw, Received

KEY = "sk-upstream-secret"
JSON = {"content-type": "application/json"}


def answered(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Raw:
    return Raw((json.dumps(body).encode(),), status, headers or JSON)


def part(body: bytes, name: str) -> bytes:
    """The content of a form's part."""
    found = re.search(rb'name="%b"[^\r\n]*(?:\r\n[^\r\n]+)*\r\n\r\n(.*?)\r\n--' % name.encode(), body, re.DOTALL)
    assert found is not None, body[:300]
    return found[1]


class Account:
    """What a vendor keeps for one key, whoever asks with it; `vendor` serves it."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        """Of the vendor's own paths."""
        self.kept: dict[str, dict[str, Any]] = {}
        self.contents: dict[str, bytes] = {}
        self.other: Callable[[Received], Raw | None] = lambda _: None
        self._numbers = itertools.count(1)
        self.vendor = FakeVendor(self.answer)

    def make(self, kind: str, **fields: Any) -> dict[str, Any]:
        made = {"id": f"{kind}-{next(self._numbers)}", "object": kind, "created_at": 1, **fields}
        self.kept[made["id"]] = made
        return made

    def answer(self, received: Received) -> Raw:
        assert received.headers.get("authorization") == f"Bearer {KEY}" or KEY in received.headers.values()
        path, _, query = received.path.partition("?")
        steps = path.removeprefix("/v1").removeprefix(self.prefix).strip("/").split("/")
        return self.other(received) or self._resource(received, steps, query)

    def _resource(self, received: Received, steps: list[str], query: str) -> Raw:
        kind = {"files": "file", "batches": "batch", "responses": "response", "conversations": "conversation"}.get(
            steps[-1] if steps[:2] == ["messages", "batches"] and len(steps) == 2 else steps[0], "batch"
        )
        if steps[:2] == ["messages", "batches"]:
            steps = steps[1:]
        if len(steps) == 1 and received.method == "POST":
            return self._create(kind, received)
        if len(steps) == 1:
            return self._list(kind, query)
        found = self.kept.get(steps[1])
        if found is None:
            return answered({"error": {"message": f"No such {kind}", "type": "invalid_request_error"}}, 404)
        if steps[2:] in (["content"], ["results"]):
            return Raw((self.contents.get(steps[1], b"{}\n"),), 200, {"content-type": "application/octet-stream"})
        if received.method == "DELETE":
            del self.kept[steps[1]]
            return answered({"id": steps[1], "object": f"{kind}.deleted", "deleted": True})
        if steps[2:] in (["items"], ["input_items"]):
            return answered({"object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None})
        return answered(found)

    def _create(self, kind: str, received: Received) -> Raw:
        if kind != "file":
            fields = received.json() if received.body else {}
            extra = {"output_file_id": self.make("file")["id"]} if "input_file_id" in fields else {}
            if "requests" in fields:
                extra = {"type": "message_batch", "processing_status": "ended"}
            made = self.make(kind, **{**fields, **extra})
            if "requests" in fields:
                made["results_url"] = f"https://api.anthropic.example/v1/messages/batches/{made['id']}/results"
            return answered(made)
        content = part(received.body, "file")
        made = self.make("file", filename="f", bytes=len(content), purpose="assistants", type="file")
        self.contents[made["id"]] = content
        return answered(made)

    def _list(self, kind: str, query: str) -> Raw:
        asked = dict(each.split("=") for each in query.split("&") if each)
        all_ = [each for each in reversed(self.kept.values()) if each["object"] == kind]
        after = asked.get("after") or asked.get("after_id")
        if after:
            ids = [each["id"] for each in all_]
            all_ = all_[ids.index(after) + 1 :]
        page = all_[: int(asked.get("limit", "20"))]
        ids = [each["id"] for each in page]
        ends = {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
        return answered({"object": "list", "data": page, "has_more": len(page) < len(all_), **ends})
