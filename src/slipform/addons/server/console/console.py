"""Serve the console's page, JSON and events to holders of a session, for all workers together."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import orjson

from slipform import __version__
from slipform.addons.server.admission.admission import ANYBODY, Caller
from slipform.addons.server.calls.endpoints import UnknownPathError
from slipform.addons.server.calls.pages import WrongMethodError, openapi_bytes, spend
from slipform.addons.server.console.access import ConsoleAccess, console_secret
from slipform.addons.server.console.archive import CallArchive
from slipform.addons.server.console.conversations import ConversationCall, link_calls, read_calls
from slipform.addons.server.console.history import MOST_PINNED, CallHistory
from slipform.addons.server.console.key_changes import budget_fields, create_key, edit_key, revoke_key
from slipform.addons.server.console.other_workers import LAST_EVENT, OtherWorkers
from slipform.addons.server.console.recording import Recording
from slipform.addons.server.console.rows import FIELDS, matches, narrowest, parse_query
from slipform.addons.server.console.schema_builder import build_schema
from slipform.addons.server.console.static_files import ROOT, SECURITY_HEADERS, serve_page
from slipform.addons.server.deployment import Deployment
from slipform.addons.server.http_server.asgi import (
    Receive,
    Scope,
    Send,
    client_address,
    read_body,
    read_query,
    send_page,
)
from slipform.addons.server.observability.call_record import Header
from slipform.addons.server.observability.metrics import WorkerAddress
from slipform.build_info import build_in_use
from slipform.config import ServerSettings
from slipform.errors import RequestError
from slipform.providers.call import VENDOR_RETRIED
from slipform.schema.limits import LARGE_BYTES

_log = logging.getLogger("slipform.server")
API = f"{ROOT}/api/v1/"
_MAX_BODY = 16 * 1024 * 1024
_MAX_ROWS = 200
_BATCH_SECONDS = 0.1
_BYTES_PER_SECOND = 256 * 1024
"""The most that one open page is sent; slower clients get a gap."""
_EVENT_ID = re.compile(r"[\w.,]{0,8192}", re.ASCII)
_SHARED = frozenset({"requests", "conversations", "stats", "schemas", "providers", "keys", "me"})
"""Views that combine the answers of all workers."""
_TALLIES = frozenset({"stats", "schemas", "providers"})
_CHANGES = frozenset({"tracing", "requests", "lessons"})
"""Resources that are changed in all workers."""
_ABSENT = {
    "off": "Prompts and answers were not recorded when the call was made (`server.traces`).",
    "opted_out": "The caller asked not to be recorded (`x-slipform-trace: off` or `cache-control: no-store`).",
    "failures": "Prompts and answers are recorded only of calls that fail (`server.traces: failures`).",
    "kept": "Its prompt and answer were replaced by newer ones.",
}
"""Why the text of a call is not available, by the `words` of its row."""


ServeCall = Callable[[str, Scope, Receive, Send, Caller], Awaitable[None]]
"""Serves a call of the API at a path, for an authenticated caller."""


class Console:
    """The console of one worker, over all its configurations."""

    def __init__(
        self,
        settings: ServerSettings,
        bound: str | None,
        deployment: Callable[[], Deployment],
        serve_call: ServeCall,
        worker: WorkerAddress | None = None,
    ) -> None:
        archive = None
        if settings.history:
            archive = CallArchive(
                Path(settings.history).expanduser(),
                settings.history_days,
                settings.history_text_days,
                settings.history_bytes,
            )
        self.history = CallHistory(settings.console_bytes, settings.trace_bytes, archive)
        self.workers = OtherWorkers(worker, console_secret)
        self._bound = bound
        self._deployment = deployment
        self._serve_call = serve_call
        self._started = time.time()
        self.recording = Recording(bound, deployment)
        self._draining = False

    # -- lifecycle ---------------------------------------------------------------------------------

    def drain(self) -> None:
        """Announce that the server stops, and end the event streams, for which it would wait."""
        self._draining = True
        self.history.publish("draining", b"{}")

    def close(self) -> None:
        """Write the pending calls to the archive, and close it."""
        if self.history.archive is not None:
            self.history.archive.close()

    # -- requests ---------------------------------------------------------------------------------

    def _access(self) -> ConsoleAccess:
        deployment = self._deployment()
        return ConsoleAccess(deployment.settings.server, deployment.gate.guard, self._bound, console_secret)

    @property
    def is_on(self) -> bool:
        """Whether this configuration has a console."""
        return self._access().is_on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request under /console."""
        access = self._access()
        headers = dict(scope["headers"])
        method = scope["method"]
        path = scope["path"]
        if not access.is_on:
            raise UnknownPathError(f"Unknown path: {method} {path}", hint="`server.console: on` serves a console.")
        query = read_query(scope)
        name, _, rest = path.removeprefix(API).partition("/")
        if self.workers.is_request_of_worker(headers):
            await self._answer(method, name, rest, query, ANYBODY, scope, receive, send, alone=True)
            return
        access.check_host(headers)
        if not path.startswith(API):
            await serve_page(method, path, headers, send)
            return
        if method not in ("GET", "HEAD"):
            access.check_change(headers)
        if name == "session":
            await self._session(method, access, scope, receive, send)
            return
        caller = access.operator(headers)
        await self._answer(method, name, rest, query, caller, scope, receive, send, alone=False)

    async def _answer(
        self,
        method: str,
        name: str,
        rest: str,
        query: Mapping[str, str],
        caller: Caller,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        alone: bool,
    ) -> None:
        """Serve a request for data or a change; `alone` for one of another worker, which combines the answers."""
        if (method, name) == ("GET", "events"):
            after = query.get("after") or dict(scope["headers"]).get(LAST_EVENT.encode(), b"").decode("latin-1")
            after = after if _EVENT_ID.fullmatch(after) else "unknown"
            await self._events(query.get("watch", ""), after, receive, send, alone=alone)
        elif (method, name) == ("POST", "play"):
            await self._serve_call(query.get("path") or "/v1/chat/completions", scope, receive, send, caller)
        elif method == "GET":
            target = path_of(scope)
            others = [] if alone or name not in _SHARED else await self.workers.ask("GET", target)
            await _send(send, await self._read(name, rest, query, caller, others, alone=alone))
        else:
            payload = _parsed(await read_body(receive, _MAX_BODY))
            if name == "keys":
                await _send(send, await self._change_keys(method, rest, payload, caller))
                return
            if not alone and name in _CHANGES:
                _log.info("console: %s %s by %s", method, scope["path"][:200], caller.name or "a holder of the link")
                await self.workers.ask(method, path_of(scope), payload)
            await _send(send, await self._change(method, name, rest, payload, alone=alone))

    async def _session(self, method: str, access: ConsoleAccess, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if method == "DELETE":
            await _send(send, {"ok": True}, [(b"set-cookie", access.expired_cookie(headers).encode())])
            return
        if method != "POST":
            raise WrongMethodError("A session is opened with POST and ended with DELETE")
        payload = _parsed(await read_body(receive, 4096))
        token = str(payload.get("token") or "")
        key = str(payload.get("key") or "")
        cookie = await access.sign_in(token, key, headers, client_address(scope))
        if scope.get("scheme") == "https":
            cookie += "; Secure"
        await _send(send, {"ok": True}, [(b"set-cookie", cookie.encode())])

    # -- reading -----------------------------------------------------------------------------------

    def _tallies(self, name: str, rest: str, query: Mapping[str, str], others: list[Any], *, alone: bool) -> Any:
        """Return figures of recent calls; with `alone`, this worker's tally, which another worker adds to its own."""
        from slipform.addons.server.console import views

        deployment = self._deployment()
        router = deployment.client.router
        window = min(max(_number(query.get("window"), 900.0), 10.0), 30 * 86400.0)
        now = time.time()
        tally = views.tally_of(name, self._recent(now - window), window, now, router)
        if alone:
            return tally
        total = reduce(views.added, others, tally)
        if name == "stats":
            return views.stats(total, window, now)
        if name == "schemas":
            documents = deployment.gate.schemas.documents
            if rest:
                total = {rest: total[rest]} if rest in total else {}
            return {name: views.schema_health(total), "named": list(documents), "document": documents.get(rest)}
        return {name: views.provider_health(router, total)}

    async def _read(
        self, name: str, rest: str, query: Mapping[str, str], caller: Caller, others: list[Any], *, alone: bool
    ) -> Any:
        deployment = self._deployment()
        if rest and name not in ("requests", "conversations", "schemas"):
            raise UnknownPathError(f"Unknown path: GET {API}{name}/{rest[:64]}")
        if name == "requests":
            return await self._request(rest, others) if rest else await self._rows(query, others)
        if name == "conversations":
            return await self._conversations(rest, others, alone=alone)
        if name in _TALLIES:
            return self._tallies(name, rest, query, others, alone=alone)
        if name == "me":
            return await self._me(caller, others)
        if name == "models":
            return _models_for(caller, deployment)
        if name == "prices":
            return {"models": await self._priced_models(deployment)}
        if name == "keys":
            return {"keys": await self._keys(deployment, others)} if not alone else self._last_use()
        if name == "openapi":
            return orjson.loads(openapi_bytes())
        raise UnknownPathError(f"Unknown path: {API}{name}")

    async def _priced_models(self, deployment: Deployment) -> list[dict[str, Any]]:
        """Return the prices and limits of the models that are named or were called."""
        from slipform.addons.server.console.views import priced_models

        rows = [row for row in self.history.rows() if row["outcome"] == "ok"]
        called = [f"{row['provider']}/{row['upstream_model']}" for row in rows]
        router = deployment.client.router
        return await asyncio.to_thread(priced_models, router, deployment.settings, [*router.names(), *called])

    def _recent(self, since: float) -> Iterator[Mapping[str, Any]]:
        """Yield the rows since a time, the older ones from the archive where there is one."""
        oldest = time.time()
        for row in self.history.rows():
            oldest = min(oldest, row["at"])
            yield row
        # Workers share the archive: only a single worker knows which of the archived rows it has already counted.
        if self.history.archive is not None and self.workers.count == 1:
            yield from self.history.archive.rows(oldest, since)

    async def _me(self, caller: Caller, others: list[Any]) -> dict[str, Any]:
        deployment = self._deployment()
        archive = self.history.archive
        server = deployment.settings.server
        sizes = reduce(_sum, (each["kept"] for each in others), self.history.sizes())
        return {
            "version": __version__,
            "build": str(build_in_use()),
            "operator": caller.name,
            "keys": deployment.gate.guard.requires_key,
            "generation": deployment.generation,
            "started": self._started,
            "workers": {"count": self.workers.count, "reached": 1 + len(others)},
            "traces": {
                "mode": self.recording.mode(server),
                "switch": server.traces == "auto" and self.recording.is_private(server),
                "tracing": self.recording.as_json(),
            },
            "kept": sizes,
            "limits": {"bytes": server.console_bytes, "trace_bytes": server.trace_bytes, "pinned": MOST_PINNED},
            "history": None if archive is None else await asyncio.to_thread(archive.sizes),
            "models": deployment.settings.first_model,
            "draining": self._draining,
        }

    def _last_use(self) -> dict[str, float]:
        """Return when each key was last used, by its name."""
        last_used: dict[str, float] = {}
        for row in self.history.rows():
            last_used.setdefault(row["caller"], row["at"])
        return last_used

    async def _keys(self, deployment: Deployment, others: list[Any]) -> list[dict[str, Any]]:
        """Return the keys, when each was last used, and what it has spent."""
        last_used = self._last_use()
        for each in others:
            last_used |= {name: max(at, last_used.get(name, 0.0)) for name, at in each.items()}
        listed = []
        for key, budget in deployment.gate.guard.listed_keys():
            spent = None
            if deployment.gate.spending is not None:
                standing = await deployment.gate.spending.standing(key["id"], budget)
                spent = spend(key["name"], budget, standing, time.time())
            listed.append({**key, **budget_fields(budget), "last_used": last_used.get(key["name"]), "spend": spent})
        return listed

    async def _rows(self, query: Mapping[str, str], others: list[Any]) -> dict[str, Any]:
        """Return a page of the calls that match a query, newest first."""
        terms = parse_query(query.get("q", ""))
        limit = int(min(max(_number(query.get("limit"), 100.0), 1.0), _MAX_ROWS))
        before = _number(query.get("before"), math.inf)
        recent = (_without_detail(row) for row in self.history.rows() if row["at"] <= before and matches(row, terms))
        rows = list(islice(recent, limit + 1))
        archive = self.history.archive
        if archive is not None and len(rows) <= limit:
            rows += await asyncio.to_thread(_archived, archive, before, terms, limit + 1)
        unique = {row["id"]: row for row in (*rows, *_from_all(others, "rows"))}
        rows = sorted(unique.values(), key=lambda row: -row["at"])
        more = len(rows) > limit or any(each["more"] for each in others)
        under_way: list[dict[str, Any]] = []
        if before == math.inf:
            under_way = [row for row in self.history.under_way() if matches(row, terms)]
        return {
            "rows": rows[:limit],
            "under_way": [*under_way, *_from_all(others, "under_way")],
            "pinned": [*map(_without_detail, self.history.pinned()), *_from_all(others, "pinned")],
            "more": more,
            "kept": reduce(_sum, (each["kept"] for each in others), self.history.sizes()),
            "narrowest": narrowest(self.history.rows, terms) if terms and not rows else None,
            "unreachable": self.workers.count - 1 - len(others) if query.get("worker") != "self" else 0,
        }

    async def _request(self, rest: str, others: list[Any]) -> dict[str, Any]:
        identity, _, part = rest.partition("/")
        row = self.history.find(identity) or next(iter(others), None)
        if row is None and self.history.archive is not None:
            row = await asyncio.to_thread(self.history.find_archived, identity)
        if row is None or part not in ("", "export"):
            oldest = next(self.history.rows(newest_first=False), None)
            since = "" if oldest is None else f" The oldest call kept is of {time.ctime(oldest['at'])}."
            raise UnknownPathError(
                f"Unknown call {identity[:64]!r}",
                hint=f"It was replaced by newer calls, or belongs to an earlier run of the server.{since}",
            )
        row["absent"] = self._why_absent(row)
        return row

    async def _conversations(self, identity: str, others: list[Any], *, alone: bool) -> Any:
        """Return the conversation of a call, or the position of every call in its conversation.

        With `alone`, return the digests of this worker's calls, which another worker links with its own.
        """
        recorded = self.history.conversations
        recorded.keep(await asyncio.to_thread(read_calls, recorded.unread()))
        calls = recorded.calls()
        if alone:
            return [msgspec.to_builtins(call) for call in calls]
        calls += [msgspec.convert(call, ConversationCall) for share in others for call in share]
        conversations = link_calls(calls)
        if identity:
            return {"calls": next((each for each in conversations if any(call["id"] == identity for call in each)), [])}
        return {"places": {call["id"]: [at, len(each)] for each in conversations for at, call in enumerate(each, 1)}}

    def _why_absent(self, row: Mapping[str, Any]) -> str | None:
        """Return why the text of a call is not available; None where it is."""
        if row["trace"] is not None:
            return None
        archive = self.history.archive
        if row["words"] == "kept" and archive is not None and row["at"] < time.time() - archive.text_days * 86400:
            return f"Its prompt and answer expired: they are kept for {archive.text_days:g} days."
        return _ABSENT[row["words"]]

    def _forget_downgrade(self, payload: Mapping[str, Any], *, alone: bool) -> dict[str, Any]:
        from slipform.addons.server.console import views

        key = str(payload.get("key") or "")
        downgrade = str(payload.get("lesson") or "")
        if not views.forget_downgrade(self._deployment().client.router, key, downgrade) and not alone:
            raise UnknownPathError("This downgrade does not exist", hint="It may have expired.")
        return {"ok": True}

    async def _change(self, method: str, name: str, rest: str, payload: Mapping[str, Any], *, alone: bool) -> Any:
        if (method, name, rest) == ("POST", "schemas", "check"):
            return await _check_schema(payload)
        if (method, name, rest) == ("POST", "schemas", "build"):
            return {"schema": build_schema(payload)}
        if (method, name) == ("POST", "rejudge"):
            return await _validate_again(payload)
        if name == "tracing" and method in ("POST", "DELETE"):
            return self._record(payload if method == "POST" else None)
        if (method, name) == ("DELETE", "lessons"):
            return self._forget_downgrade(payload, alone=alone)
        if (method, name, rest) == ("DELETE", "requests", ""):
            self.history.clear()
            if self.history.archive is not None:  # the page reads the archive next
                await asyncio.to_thread(self.history.archive.flush)
            return {"ok": True}
        identity, _, part = rest.rpartition("/")
        if (method, name, part) == ("POST", "providers", "check"):
            return await self._check_provider(identity)
        identity, _, part = rest.partition("/")
        if name == "requests" and part == "pin" and method in ("PUT", "DELETE"):
            return await self._pin(identity, pinned=method == "PUT", alone=alone)
        raise UnknownPathError(f"Unknown path: {method} {API}{name}")

    async def _change_keys(
        self, method: str, key_id: str, payload: Mapping[str, Any], operator: Caller
    ) -> dict[str, Any]:
        """Change the key file for an operator; the key of the operator's session cannot be removed or disabled."""
        deployment = self._deployment()
        if not deployment.gate.guard.requires_key:
            raise RequestError("This server has no key file", hint="Set `server.keys_file`, then sign in with a key.")
        if key_id and key_id == operator.id and (method == "DELETE" or payload.get("disabled") is True):
            raise RequestError("You are signed in with this key", hint="Use another operator's key for that.")
        settings = deployment.settings
        if method == "POST" and not key_id:
            outcome = await asyncio.to_thread(create_key, settings, operator.name, payload)
        elif method == "PUT" and key_id:
            outcome = await asyncio.to_thread(edit_key, settings, operator.name, key_id, payload)
        elif method == "DELETE" and key_id:
            outcome = await asyncio.to_thread(revoke_key, settings, operator.name, key_id)
        else:
            raise UnknownPathError(f"Unknown path: {method} {API}keys")
        deployment.gate.guard.reload_keys()
        return outcome

    async def _check_provider(self, name: str) -> dict[str, Any]:
        from slipform.providers.probe import probe

        provider = self._deployment().client.router.providers.get(name)
        if provider is None:
            raise UnknownPathError(f"Unknown provider {name[:64]!r}")
        report = await asyncio.to_thread(probe, provider)
        return {"ok": report.ok, "text": report.text, "ms": round(report.seconds * 1000, 1)}

    def _record(self, payload: Mapping[str, Any] | None) -> dict[str, Any]:
        """Start or resume recording as the page requests; with None, stop it."""
        if payload is None:
            self.recording.stop()
        elif payload.get("recording") is True:
            self.recording.resume()
        else:
            self.recording.start(
                minutes=_number(payload.get("minutes"), 10.0),
                calls=_number(payload.get("count"), math.inf),
                model=str(payload.get("model") or "")[:256],
                key=str(payload.get("key") or "")[:256],
            )
        state = {"tracing": self.recording.as_json()}
        self.history.publish("tracing", orjson.dumps(state))
        return state

    async def _pin(self, identity: str, *, pinned: bool, alone: bool) -> dict[str, Any]:
        if not pinned:
            self.history.unpin(identity)
            return {"pinned": False}
        is_pinned = self.history.pin(identity)
        if is_pinned is False:
            raise RequestError(f"{MOST_PINNED} calls are pinned", hint="Unpin one first.")
        if is_pinned is None and not alone and self.workers.count == 1:
            raise UnknownPathError(f"Unknown call {identity[:64]!r}")
        return {"pinned": True}

    # -- events -----------------------------------------------------------------------------------

    async def _events(self, watched: str, after: str, receive: Receive, send: Send, *, alone: bool) -> None:
        """Stream events to a page in batches; send a comment every few seconds to keep the connection open."""
        subscriber = self.history.subscribe(watched, after)
        relays = [] if alone else self.workers.relay(f"{API}events?watch={quote(watched)}", subscriber, after)
        head = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"), *SECURITY_HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        disconnected = asyncio.ensure_future(_until_disconnect(receive))
        try:
            hello = orjson.dumps({"fields": FIELDS, "tracing": self.recording.as_json(), "draining": self._draining})
            missed = self.history.take(subscriber)
            start = b"event: hello\ndata: %s\n\n%s" % (hello, missed)
            # The id of the last event is that of all before it.
            body = start if missed else subscriber.id_line() + start
            await send({"type": "http.response.body", "body": body, "more_body": True})
            while not disconnected.done():
                waiting = asyncio.ensure_future(subscriber.wake.wait())
                await asyncio.wait([waiting, disconnected], timeout=10, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                body = self.history.take(subscriber) or b": alive\n\n"
                if not disconnected.done():
                    await send({"type": "http.response.body", "body": body, "more_body": not self._draining})
                if self._draining:
                    return
                await asyncio.wait([disconnected], timeout=max(_BATCH_SECONDS, len(body) / _BYTES_PER_SECOND))
        finally:
            disconnected.cancel()
            for relay in relays:
                relay.cancel()
            self.history.unsubscribe(subscriber)


async def _check_schema(payload: Mapping[str, Any]) -> Any:
    from slipform.addons.server.console import views

    document = payload.get("schema")
    if len(orjson.dumps(document, default=str)) > LARGE_BYTES:
        return await asyncio.to_thread(views.check_schema, document)
    return views.check_schema(document)


async def _validate_again(payload: Mapping[str, Any]) -> Any:
    from slipform.addons.server.console import views

    text = payload.get("text")
    document = payload.get("schema")
    if not isinstance(text, str) or not isinstance(document, dict):
        raise RequestError("`text` and `schema` are needed", where="text")
    return await asyncio.to_thread(views.validate_again, text, document)


def _models_for(caller: Caller, deployment: Deployment) -> dict[str, Any]:
    """Return the choices of the playground: the models that a caller may use, and the number of attempts."""
    router = deployment.client.router
    names = [each for each in router.names() if caller.may_use(each, router)]
    settings = deployment.settings
    return {"models": names, "default": settings.first_model, "max_attempts": settings.max_attempts}


def _from_all(workers: list[Any], name: str) -> list[dict[str, Any]]:
    return [row for worker in workers for row in worker[name]]


def path_of(scope: Scope) -> str:
    """Return the path and query with which a request is sent on to another worker."""
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{quote(scope['path'])}?{query}&worker=self" if query else f"{quote(scope['path'])}?worker=self"


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: count + other.get(name, 0) for name, count in one.items()}


def _without_detail(row: dict[str, Any]) -> dict[str, Any]:
    detail = row.pop("detail", None) or {}
    if VENDOR_RETRIED in detail.get("notes", ()):
        row["waited"] = True
    return row


def _archived(archive: CallArchive, before: float, terms: list[tuple[str, str]], limit: int) -> list[dict[str, Any]]:
    rows = (_without_detail(row) for row in archive.rows(min(before, time.time() + 60)) if matches(row, terms))
    return list(islice(rows, limit))


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, content: Any, headers: list[Header] | None = None) -> None:
    await send_page(
        send, 200, orjson.dumps(content, default=str), b"application/json", (*SECURITY_HEADERS, *(headers or ()))
    )


def _parsed(body: bytes) -> Mapping[str, Any]:
    try:
        payload = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError as error:
        raise RequestError(f"The body is not JSON: {error}") from None
    if not isinstance(payload, dict):
        raise RequestError("The body is not a JSON object")
    return payload


def _number(value: Any, default: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return default
    return number if math.isfinite(number) else default
