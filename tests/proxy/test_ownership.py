"""Two keys at one vendor's account: whatever rows they call, in whatever order, neither sees what is the other's."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from slipform.addons.server.admission.keys import add_key
from slipform.addons.server.calls.endpoints import ROWS, EndpointRow
from slipform.addons.server.calls.resources import unmark
from tests.conftest import examples
from tests.proxy.account import KEY
from tests.proxy.proxying import call, proxied
from tests.proxy.test_endpoints import raw_post, upstream
from tests.proxy.test_stored_responses import Keeper, keeping

FAMILIES: dict[str, dict[str, str]] = {"openai": {}, "anthropic": {"anthropic-version": "2023-06-01"}}
OWNING = [row for row in ROWS if row.kind == "forwarded" and (row.creates or row.lists or row.resources)]
REFERRING: list[tuple[str, str, Any]] = [
    ("file", "/v1/batches", {"input_file_id": "ID", "endpoint": "/v1/embeddings", "completion_window": "24h"}),
    ("file", "/v1/chat/completions", {"model": "gpt/m", "messages": [
        {"role": "user", "content": [{"type": "file", "file": {"file_id": "ID"}}]}]}),
    ("file", "/v1/responses", {"model": "keeps/m", "input": [
        {"role": "user", "content": [{"type": "input_file", "file_id": "ID"}]}]}),
    ("file", "/v1/messages", {"model": "claude/m", "max_tokens": 5, "messages": [
        {"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": "ID"}}]}]}),
    ("response", "/v1/responses", {"model": "keeps/m", "input": "x", "previous_response_id": "ID"}),
    ("conversation", "/v1/responses", {"model": "keeps/m", "input": "x", "conversation": "ID"}),
    ("conversation", "/v1/responses", {"model": "keeps/m", "input": "x", "conversation": {"id": "ID"}}),
]  # fmt: skip
"""Calls that name a resource in their body: its kind, the path, the body."""


class Accounts:
    """A proxy with two keys in front of one account at each of three vendors."""

    def __init__(self, address: str, secrets: dict[str, str], keepers: dict[str, Keeper]) -> None:
        self.address = address
        self.secrets = secrets
        self.keepers = keepers
        self.own: dict[tuple[str, str, str], list[str]] = {}
        """The ids that each key has been given, by family, kind and key."""

    def ask(self, who: str, row: EndpointRow, path: str, body: Any = None) -> Any:
        headers = {**FAMILIES[row.family], "authorization": f"Bearer {self.secrets[who]}"}
        headers["x-slipform-provider"] = self.provider_of(row)
        if row.sent == "file":
            form = (
                b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nassistants\r\n--b\r\n'
                b'content-disposition: form-data; name="file"; filename="f"\r\n\r\n%b\r\n--b--\r\n' % who.encode()
            )
            return raw_post(self.address, path, form, headers)
        return call(self.address, path, body if row.sent or body else None, headers, method=row.method)

    @staticmethod
    def provider_of(row: EndpointRow) -> str:
        able = "gpt" if "openai-chat" in (row.upstream or {}) else "keeps"
        return "claude" if row.family == "anthropic" else able

    def create(self, who: str, row: EndpointRow) -> None:
        body: Any = {"metadata": {"of": who}}
        if row.model == "body":
            body = {"model": f"{self.provider_of(row)}/m", "input": []}
        elif row.model == "requests":
            params = {"model": "claude/m", "max_tokens": 1, "messages": []}
            body = {"requests": [{"custom_id": who, "params": params}]}
        elif row.creates == "batch":
            self.create(who, next(each for each in OWNING if each.creates == "file" and each.family == "openai"))
            body = {"input_file_id": self.own["openai", "file", who][-1]}
        reply = self.ask(who, row, row.path, body)
        assert reply.status == 200, reply.body
        if "output_file_id" in reply.json:  # as the batch's results are
            self.own.setdefault((row.family, "file", who), []).append(reply.json["output_file_id"])
        self.own.setdefault((row.family, row.creates, who), []).append(reply.json["id"])

    def ids(self, family: str, kind: str, who: str) -> list[str]:
        return self.own.get((family, kind, who), [])


@contextlib.contextmanager
def accounts() -> Iterator[Accounts]:
    keepers = {name: Keeper() for name in ("gpt", "claude", "keeps")}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        keys = Path(folder) / "keys.json"
        secrets = {name: add_key(keys, name)[1] for name in ("ada", "bob")}
        vendors = {name: stack.enter_context(each.vendor) for name, each in keepers.items()}
        providers = {
            "gpt": upstream(vendors["gpt"]),
            "claude": upstream(vendors["claude"], "anthropic"),
            "keeps": keeping(vendors["keeps"]),
        }
        server = {"server": {"keys_file": str(keys)}, "default_model": "gpt/m"}
        address = stack.enter_context(proxied(providers, server))
        yield Accounts(address, secrets, keepers)


def created_kinds() -> list[EndpointRow]:
    return [row for row in OWNING if row.creates]


@given(
    makers=st.lists(
        st.tuples(st.sampled_from(["ada", "bob"]), st.sampled_from(created_kinds())), min_size=2, max_size=8
    )
)
@settings(
    max_examples=examples(12), deadline=None, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_no_row_shows_one_key_what_is_anothers(makers: list[tuple[str, EndpointRow]]) -> None:
    with accounts() as world:
        for who, row in makers:
            world.create(who, row)
        for who, other in (("ada", "bob"), ("bob", "ada")):
            for row in OWNING:
                if row.lists:
                    listed = [each["id"] for each in world.ask(who, row, f"{row.path}?limit=1").json["data"]]
                    assert set(listed) <= set(world.ids(row.family, row.lists, who)), row
                    assert bool(listed) == bool(world.ids(row.family, row.lists, who)), row
                kind = row.owner_kind()
                for identity in world.ids(row.family, kind, other) if kind else ():
                    path = re.sub(r"{\w+}", "item-1", row.path.replace(f"{{{kind}}}", identity))
                    reply = world.ask(who, row, path, {"items": []} if row.sent else None)
                    assert reply.status == 404, (row, reply.body)
                    assert other not in reply.body.decode()
            for kind, path, body in REFERRING:
                family = "anthropic" if path == "/v1/messages" else "openai"
                for identity in world.ids(family, kind, other):
                    filled = json.loads(json.dumps(body).replace("ID", identity))
                    provider = filled.get("model", "gpt").partition("/")[0]
                    headers = {"authorization": f"Bearer {world.secrets[who]}", "x-slipform-provider": provider}
                    headers |= FAMILIES["anthropic"] if path == "/v1/messages" else {}
                    # OpenAI's answer to a previous response that it does not know is 400.
                    expected = 400 if "previous_response_id" in body else 404
                    assert call(world.address, path, filled, headers).status == expected, (path, identity)
        for who in ("ada", "bob"):  # and each still has its own
            for (family, kind, owner), ids in world.own.items():
                shown = [row for row in OWNING if row.method == "GET" and row.path.endswith("}")]
                row = next(row for row in shown if (row.family, row.owner_kind()) == (family, kind))
                for identity in ids if owner == who else ():
                    assert world.ask(who, row, row.path.replace(f"{{{kind}}}", identity)).status == 200


def test_every_row_that_names_a_resource_is_owned() -> None:
    """A new row must say what it creates, lists or names, or the property above does not see it."""
    for row in ROWS:
        if row.kind == "forwarded" and "{" in row.path.replace("{model}", ""):
            assert row in OWNING
            assert row.owner_kind() in {each.creates for each in OWNING} | {"response"}, row


def test_a_list_is_read_on_until_the_callers_own_are_found() -> None:
    with accounts() as world:
        files = next(row for row in OWNING if row.creates == "file" and row.family == "openai")
        listing = next(row for row in OWNING if row.lists == "file" and row.family == "openai")
        world.create("ada", files)
        for _ in range(150):
            world.keepers["gpt"].make("file")
        world.create("bob", files)
        world.create("ada", files)
        first = world.ask("ada", listing, "/v1/files?limit=1").json
        mine = world.ids("openai", "file", "ada")
        assert [each["id"] for each in first["data"]] == [mine[1]]
        assert first["has_more"]
        second = world.ask("ada", listing, f"/v1/files?limit=1&after={mine[1]}").json
        assert [each["id"] for each in second["data"]] == [mine[0]]
        assert not second["has_more"]
        theirs = world.ids("openai", "file", "bob")[0]
        assert world.ask("ada", listing, f"/v1/files?after={theirs}").status == 404


def test_what_a_key_owns_survives_a_restart(tmp_path: Path) -> None:
    keeper = Keeper()
    keys = tmp_path / "keys.json"
    secret = add_key(keys, "ada")[1]
    headers = {"authorization": f"Bearer {secret}"}
    with keeper.vendor as vendor:
        for at in range(2):
            with proxied({"keeps": keeping(vendor)}, {"server": {"keys_file": str(keys)}}) as address:
                if not at:
                    made = call(address, "/v1/responses", {"model": "keeps/m", "input": "x"}, headers).json["id"]
                assert call(address, f"/v1/responses/{made}", headers=headers).status == 200
    assert unmark(made)[0] == "keeps"
    assert KEY not in made


def test_the_marks_of_one_vendor_are_not_another_providers() -> None:
    with accounts() as world:
        headers = {"authorization": f"Bearer {world.secrets['ada']}"}
        made = call(world.address, "/v1/responses", {"model": "keeps/m", "input": "x"}, headers).json["id"]
        moved = made.replace("keeps", "gpt", 1)
        assert call(world.address, f"/v1/responses/{moved}", headers=headers).status == 404
