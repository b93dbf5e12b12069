"""List every endpoint that slipform serves or refuses by name, and find the one that a request addresses.

One table for all vendors' APIs: the router, the forwarder, `/openapi.json` and docs/endpoints.md read it. A path is
never forwarded: the provider's path is built from a row's template and the checked, quoted segments of the request's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

from slipform.errors import RequestError

Family: TypeAlias = Literal["openai", "anthropic", "gemini", "ollama", "cohere"]
"""The vendor whose clients call a path; SDKs of several vendors share some paths."""
EndpointKind: TypeAlias = Literal["enforced", "forwarded", "counted", "served", "refused"]
ModelPlace: TypeAlias = Literal["", "body", "part", "path", "lines", "requests"]
"""Where a request names its model: a field, a form part, the path, each line of a file, or each request of a batch."""
Sent: TypeAlias = Literal["", "json", "form", "file"]
"""The body of a request: none, JSON, a form that is read whole, or a form whose file is forwarded in pieces."""
Answered: TypeAlias = Literal["json", "events", "bytes"]
"""The body of an answer: JSON, JSON or a stream as requested, or bytes that are forwarded in pieces."""

_ID: Final = r"(?!\.\.?(?:/|\Z))[A-Za-z0-9._:~-]{1,256}"
_OPENAI_CODECS: Final = ("openai-chat", "openai-responses")
_PAGED: Final = frozenset({"limit", "after", "order"})


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """One method and path, and how requests to it are answered."""

    method: str
    """`*` for any."""
    path: str
    """A template: `{file}` is the id of a resource of that kind, and `*` at the end matches any rest."""
    family: Family
    kind: EndpointKind
    title: str
    api: str = ""
    """For `enforced`: the served API that decodes it."""
    model: ModelPlace = ""
    model_required: bool = True
    upstream: Mapping[str, str] | None = None
    """The path at a provider, by codec; codecs without an entry have no such endpoint."""
    sent: Sent = ""
    body_optional: bool = False
    """Whether a request may omit the body."""
    answered: Answered = "json"
    query: frozenset[str] = frozenset()
    """The query parameters that are forwarded."""
    creates: str = ""
    """The kind of resource whose id is in the answer."""
    lists: str = ""
    """The kind of resource that the answer lists."""
    cursor: str = "after"
    """The query parameter that names the last resource of the previous page."""
    yields: Mapping[str, str] | None = None
    """Fields of the answer that contain ids of further resources, or lists of objects with ids; and their kinds."""
    usage: str = ""
    """The API whose format the token counts of the answer have."""
    writes: bool = True
    """Whether a model generates output; for embeddings and the like it does not."""
    status: int = 200
    """For `refused`: the HTTP status."""
    instead: str = ""
    """For `refused`: the reason, and the closest alternative."""

    @property
    def name(self) -> str:
        """The name of the row in logs and metrics.

        >>> find_row("GET", "/v1/files/file-1").name
        'files/{file}'
        """
        return self.path.removeprefix("/v1beta/").removeprefix("/v1/").lstrip("/")

    @property
    def resources(self) -> tuple[str, ...]:
        """The kinds of resources in the path."""
        return _resources_in(self.path)

    def owner_kind(self) -> str:
        """Return the kind of the first resource in the path, which the caller must own; empty for none."""
        return self.resources[0] if self.resources else ""


@lru_cache(maxsize=256)
def _resources_in(path: str) -> tuple[str, ...]:
    """Return the kinds of resources in a path; cached, because it is used several times per call."""
    return tuple(name for name in re.findall(r"{(\w+)}", path) if name != "model")


class Located(NamedTuple):
    """A row, and the parts of the request's path: ids by kind, the model, the provider of a mount."""

    row: EndpointRow
    path: str
    """The path as the API's own clients write it: without mount or deployment."""
    segments: Mapping[str, str]
    model: str | None = None
    provider: str | None = None


class NotServedError(RequestError):
    """An endpoint that is known and not served."""

    code = "not_served"
    http_status = 501


class NeverServedError(RequestError):
    """An endpoint that manages a vendor's account or machine, which callers of a proxy must not reach."""

    code = "never_served"
    http_status = 403


class UnknownPathError(RequestError):
    """The server has no endpoint at that path."""

    code = "unknown_path"
    http_status = 404


class WebSocketError(RequestError):
    """The client requested a WebSocket at an HTTP endpoint."""

    code = "upgrade_required"
    http_status = 426


def refusal_of(row: EndpointRow, method: str, path: str) -> RequestError:
    """Return the error for a row that is refused.

    >>> refusal_of(find_row("POST", "/v1/assistants"), "POST", "/v1/assistants").http_status
    501
    """
    kinds = {403: NeverServedError, 404: UnknownPathError}
    return kinds.get(row.status, NotServedError)(f"{method} {path[:100]} is not served here", hint=row.instead)


def _enforced(path: str, family: Family, api: str, title: str, model: ModelPlace = "body") -> EndpointRow:
    return EndpointRow("POST", path, family, "enforced", title, api, model, sent="json", answered="events")


def _openai(
    method: str,
    path: str,
    title: str,
    *,
    model: ModelPlace = "",
    required: bool = True,
    sent: Sent = "",
    body_optional: bool = False,
    answered: Answered = "json",
    query: frozenset[str] = frozenset(),
    creates: str = "",
    lists: str = "",
    yields: Mapping[str, str] | None = None,
    usage: str = "",
    writes: bool = True,
    codecs: tuple[str, ...] = _OPENAI_CODECS,
    upstream: Mapping[str, str] | None = None,
    kind: EndpointKind = "forwarded",
) -> EndpointRow:
    """Return a row of OpenAI's API; the base URLs of its providers contain the version."""
    paths = {codec: path.removeprefix("/v1") for codec in codecs} | dict(upstream or {})
    return EndpointRow(
        method,
        path,
        "openai",
        kind,
        title,
        model=model,
        model_required=required,
        upstream=paths,
        sent=sent,
        body_optional=body_optional,
        answered=answered,
        query=query,
        creates=creates,
        lists=lists,
        yields=yields,
        usage=usage,
        writes=writes,
    )


def _anthropic(
    method: str,
    path: str,
    title: str,
    *,
    kind: EndpointKind = "forwarded",
    model: ModelPlace = "",
    sent: Sent = "",
    answered: Answered = "json",
    creates: str = "",
    lists: str = "",
) -> EndpointRow:
    query = frozenset({"limit", "after_id", "before_id"}) if lists else frozenset[str]()
    return EndpointRow(
        method,
        path,
        "anthropic",
        kind,
        title,
        model=model,
        upstream={"anthropic": path},
        sent=sent,
        answered=answered,
        query=query,
        creates=creates,
        lists=lists,
        cursor="after_id",
    )


def _gemini(verb: str, title: str, kind: EndpointKind = "forwarded", *, writes: bool = True) -> EndpointRow:
    path = f"/v1beta/models/{{model}}:{verb}"
    return EndpointRow(
        "POST",
        path,
        "gemini",
        kind,
        title,
        model="path",
        upstream={"gemini": f":{verb}"},
        sent="json",
        usage="gemini",
        writes=writes,
    )


def _served(method: str, path: str, family: Family, title: str) -> EndpointRow:
    return EndpointRow(method, path, family, "served", title, sent="json" if method == "POST" else "")


def _refused(paths: str, family: Family, title: str, instead: str, status: int = 501) -> Iterator[EndpointRow]:
    for path in paths.split():
        method, slash, rest = path.partition("/")
        yield EndpointRow(method or "*", slash + rest, family, "refused", title, status=status, instead=instead)


_RESPONSES: Final = ("openai-responses",)
_ITEMS: Final = {"data": "item"}
_FILE_IDS: Final = {"output_file_id": "file", "error_file_id": "file"}
_ACCOUNT: Final = "It manages the vendor's account; use the vendor's own address and key."
ROWS: Final[tuple[EndpointRow, ...]] = (
    _enforced("/v1/chat/completions", "openai", "openai-chat", "Chat Completions"),
    _enforced("/v1/responses", "openai", "openai-responses", "Responses"),
    _enforced("/v1/messages", "anthropic", "anthropic", "Messages"),
    _enforced("/v1beta/models/{model}:generateContent", "gemini", "gemini", "generateContent", "path"),
    _enforced("/v1beta/models/{model}:streamGenerateContent", "gemini", "gemini", "streamGenerateContent", "path"),
    _enforced("/v1/completions", "openai", "openai-completions", "Completions"),
    # Models
    _served("GET", "/v1/models", "openai", "The models"),
    _served("GET", "/v1/models/{model}", "openai", "One model"),
    _served("GET", "/v1beta/models", "gemini", "The models, as Gemini lists them"),
    _served("GET", "/v1beta/models/{model}", "gemini", "One model, as Gemini shows it"),
    *_refused("DELETE/v1/models/{model} DELETE/v1beta/models/{model} PATCH/v1beta/models/{model}", "openai",
              "Delete or change a tuned model", _ACCOUNT, 403),
    # Forwarded
    _openai("POST", "/v1/embeddings", "Embeddings", model="body", sent="json", usage="openai-chat",
            upstream={"ollama": "/v1/embeddings"}, writes=False),
    _openai("POST", "/v1/moderations", "Moderations", model="body", required=False, sent="json", writes=False),
    _openai("POST", "/v1/images/generations", "Images", model="body", required=False, sent="json", answered="events",
            usage="openai-responses"),
    _openai("POST", "/v1/images/edits", "Edits of images", model="part", required=False, sent="form",
            answered="events", usage="openai-responses"),
    _openai("POST", "/v1/images/variations", "Variations of images", model="part", required=False, sent="form"),
    _openai("POST", "/v1/audio/speech", "Speech", model="body", sent="json", answered="bytes"),
    _openai("POST", "/v1/audio/transcriptions", "Transcriptions", model="part", sent="form", answered="events",
            usage="openai-responses"),
    _openai("POST", "/v1/audio/translations", "Translations of speech", model="part", sent="form"),
    *[EndpointRow("POST", path, "cohere" if path == "/v2/rerank" else "openai", "forwarded", "Reranking", model="body",
                  sent="json", upstream={"openai-chat": "/rerank", "cohere": "/v2/rerank"}, writes=False)
      for path in ("/v1/rerank", "/v2/rerank")],
    *[EndpointRow("POST", path, "cohere", "forwarded", "Cohere's embeddings", model="body", sent="json",
                  upstream={"cohere": path}, writes=False) for path in ("/v1/embed", "/v2/embed")],
    _openai("POST", "/v1/decisions", "Decisions", model="body", sent="json", usage="openai-responses"),
    # Files and batches
    _openai("POST", "/v1/files", "Files", model="lines", required=False, sent="file", creates="file"),
    _openai("GET", "/v1/files", "Files", query=_PAGED | {"purpose"}, lists="file"),
    _openai("GET", "/v1/files/{file}", "Files"),
    _openai("DELETE", "/v1/files/{file}", "Files"),
    _openai("GET", "/v1/files/{file}/content", "Files", answered="bytes"),
    _openai("POST", "/v1/batches", "Batches", sent="json", creates="batch", yields=_FILE_IDS),
    _openai("GET", "/v1/batches", "Batches", query=_PAGED, lists="batch", yields=_FILE_IDS),
    _openai("GET", "/v1/batches/{batch}", "Batches", yields=_FILE_IDS),
    _openai("POST", "/v1/batches/{batch}/cancel", "Batches", yields=_FILE_IDS),
    _anthropic("POST", "/v1/files", "Files", sent="file", creates="file"),
    _anthropic("GET", "/v1/files", "Files", lists="file"),
    _anthropic("GET", "/v1/files/{file}", "Files"),
    _anthropic("DELETE", "/v1/files/{file}", "Files"),
    _anthropic("GET", "/v1/files/{file}/content", "Files", answered="bytes"),
    _anthropic("POST", "/v1/messages/batches", "Message batches", model="requests", sent="json", creates="batch"),
    _anthropic("GET", "/v1/messages/batches", "Message batches", lists="batch"),
    _anthropic("GET", "/v1/messages/batches/{batch}", "Message batches"),
    _anthropic("DELETE", "/v1/messages/batches/{batch}", "Message batches"),
    _anthropic("POST", "/v1/messages/batches/{batch}/cancel", "Message batches"),
    _anthropic("GET", "/v1/messages/batches/{batch}/results", "Message batches", answered="bytes"),
    # What a vendor that speaks Responses keeps
    _openai("GET", "/v1/responses/{response}", "Stored responses", answered="events", codecs=_RESPONSES,
            query=frozenset({"include", "stream", "starting_after"})),
    _openai("DELETE", "/v1/responses/{response}", "Stored responses", codecs=_RESPONSES),
    _openai("POST", "/v1/responses/{response}/cancel", "Stored responses", codecs=_RESPONSES),
    _openai("GET", "/v1/responses/{response}/input_items", "Stored responses", codecs=_RESPONSES,
            query=_PAGED | {"include"}, yields=_ITEMS),
    _openai("POST", "/v1/responses/compact", "Compaction", model="body", sent="json", codecs=_RESPONSES,
            usage="openai-responses", creates="response"),
    _openai("POST", "/v1/conversations", "Conversations", sent="json", codecs=_RESPONSES, creates="conversation",
            body_optional=True),
    *[_openai(method, "/v1/conversations/{conversation}", "Conversations", codecs=_RESPONSES,
              sent="json" if method == "POST" else "") for method in ("GET", "POST", "DELETE")],
    _openai("GET", "/v1/conversations/{conversation}/items", "Conversations", codecs=_RESPONSES,
            query=_PAGED | {"include"}, yields=_ITEMS),
    _openai("POST", "/v1/conversations/{conversation}/items", "Conversations", sent="json", codecs=_RESPONSES,
            yields=_ITEMS),
    *[_openai(method, "/v1/conversations/{conversation}/items/{item}", "Conversations", codecs=_RESPONSES,
              query=frozenset({"include"})) for method in ("GET", "DELETE")],
    # Counted
    _anthropic("POST", "/v1/messages/count_tokens", "Token counts", kind="counted", model="body", sent="json"),
    _openai("POST", "/v1/responses/input_tokens", "Token counts", kind="counted", model="body", sent="json",
            codecs=_RESPONSES),
    _gemini("countTokens", "Token counts", "counted"),
    _gemini("embedContent", "Embeddings", writes=False),
    _gemini("batchEmbedContents", "Embeddings", writes=False),
    _gemini("predict", "Images"),
    # Ollama
    _enforced("/api/chat", "ollama", "ollama", "Ollama's chat"),
    _enforced("/api/generate", "ollama", "ollama-generate", "Ollama's generate"),
    _served("GET", "/api/tags", "ollama", "The models, as Ollama lists them"),
    _served("POST", "/api/show", "ollama", "One model, as Ollama shows it"),
    _served("GET", "/api/ps", "ollama", "The loaded models: always an empty list"),
    _served("GET", "/api/version", "ollama", "A version of Ollama's API"),
    *[EndpointRow("POST", path, "ollama", "forwarded", "Ollama's embeddings", model="body", sent="json",
                  upstream={"ollama": path}, usage="ollama", writes=False)
      for path in ("/api/embed", "/api/embeddings")],
    # Known, and not served
    *_refused("/v1/chat/completions/*", "openai", "Stored chat completions",
              "slipform keeps no answers; use Responses on a provider that keeps them."),
    *_refused("/v1/assistants /v1/assistants/* /v1/threads /v1/threads/*", "openai", "Assistants (deprecated)",
              "Use Responses: POST /v1/responses."),
    *_refused("/v1/realtime /v1/realtime/* /v1/live /v1/live/*", "openai", "Realtime",
              "Use POST /v1/responses, or POST /v1/audio/transcriptions and /v1/audio/speech."),
    *_refused("/v1/uploads /v1/uploads/*", "openai", "Uploads in parts", "Upload the file whole: POST /v1/files."),
    *_refused("/v1/fine_tuning/* /v1/evals /v1/evals/* /v1/content_provenance_checks /v1/safety/*", "openai",
              "Fine-tuning and evaluations", "Use the vendor's own address; a tuned model can then be asked here."),
    *_refused("/v1/vector_stores /v1/vector_stores/* /v1/containers /v1/containers/*", "openai",
              "Vector stores and containers", "Send the text, or a file from POST /v1/files, in the request."),
    *_refused("/v1/skills /v1/skills/*", "openai", "Skills", "Send the instructions in the request."),
    *_refused("/v1/videos /v1/videos/*", "openai", "Videos", "Use POST /v1/images/generations for pictures."),
    *_refused("/v1/audio/voices /v1/audio/voices/* /v1/audio/voice_consents /v1/audio/voice_consents/*", "openai",
              "Voices of one's own", "Use one of the voices that POST /v1/audio/speech has."),
    *_refused("/v1/complete", "anthropic", "Text Completions (legacy)", "Use POST /v1/messages."),
    *_refused("/v1beta/files /v1beta/files/* /v1beta/files:register /upload/*", "gemini", "Gemini's files",
              "Send the data inline, as `inlineData`; its upload address would lead past this server."),
    *_refused("/v1beta/cachedContents /v1beta/cachedContents/* /v1beta/fileSearchStores /v1beta/fileSearchStores/*",
              "gemini", "Cached contents and file search", "Send the contents in the request."),
    *_refused("/v1beta/batches /v1beta/batches/* /v1beta/models/{model}:batchGenerateContent "
              "/v1beta/models/{model}:asyncBatchEmbedContent /v1beta/batchPredictionJobs "
              "/v1beta/batchPredictionJobs/*", "gemini", "Gemini's batches", "Use `slipform batch`."),
    *_refused("/v1beta/models/{model}:predictLongRunning /v1beta/models/{model}:computeTokens /v1beta/operations/* "
              "/v1beta/models/{model}:fetchPredictOperation /v1beta/models/{model}/operations/*", "gemini",
              "Long-running calls", "Use generateContent, or :predict for images."),
    *_refused("/v1beta/tunedModels /v1beta/tunedModels/* /v1beta/tuningJobs /v1beta/tuningJobs/*", "gemini",
              "Tuning", "Use the vendor's own address; a tuned model can then be asked here."),
    *_refused("/v1beta/interactions /v1beta/interactions/*", "gemini", "Interactions", "Use generateContent."),
    *_refused("/v1beta/auth_tokens", "gemini", "Keys for browsers", _ACCOUNT, 404),
    *_refused("/v2/chat", "cohere", "Cohere's chat", "Use POST /v1/chat/completions with the model `cohere/…`."),
    *_refused("/api/pull /api/push /api/create /api/copy /api/delete /api/blobs/*", "ollama", "Ollama's own models",
              "Models are managed on the machine that runs them.", 403),
    # Never served
    *_refused("/v1/organization/* /v1/organizations/* /v1/projects /v1/projects/* /v1/webhook_endpoints "
              "/v1/webhook_endpoints/* /v1/webhook_event_types /v1/user_profiles /v1/user_profiles/*", "openai",
              "Administration", _ACCOUNT, 404),
    *_refused("/v1/agents /v1/agents/* /v1/vaults /v1/vaults/* /v1/chatkit/* /v1/sessions /v1/sessions/* "
              "/v1/environments /v1/environments/* /v1/memory_stores /v1/memory_stores/* /v1/deployments "
              "/v1/deployments/* /v1/deployment_runs /v1/deployment_runs/* /v1/tunnels /v1/tunnels/* /v1/dreams "
              "/v1/dreams/*", "openai", "Agents that the vendor runs",
              "They run with the vendor's account; use its own address and key.", 404),
)  # fmt: skip


def _pattern(template: str) -> re.Pattern[str]:
    """Compile a template: the name of a model may contain slashes, an id may not."""
    is_prefix = template.endswith("*")
    parts = re.split(r"{(\w+)}", template.removesuffix("*"))
    fragments = [re.escape(part) for part in parts[::2]]
    for index, name in enumerate(parts[1::2]):
        fragments[index] += f"(?P<{name}>{'.+' if name == 'model' else _ID})"
    return re.compile("".join(fragments) + (".*" if is_prefix else ""), re.DOTALL)


_EXACT: Final[dict[str, list[EndpointRow]]] = {}
_PATTERNS: Final[list[tuple[re.Pattern[str], EndpointRow]]] = []
for _row in ROWS:
    if "{" in _row.path or _row.path.endswith("*"):
        _PATTERNS.append((_pattern(_row.path), _row))
    else:
        _EXACT.setdefault(_row.path, []).append(_row)
_UNAMBIGUOUS: Final[dict[tuple[str, str], Located]] = {
    (row.method, path): Located(row, path, {})
    for path, rows in _EXACT.items()
    for row in rows
    if len([each for each in rows if each.method in (row.method, "*")]) == 1
}
"""Rows without path parameters that are the only one for their method and path; most requests are for these."""
_ROOTS: Final = ("/v1/", "/v1beta/", "/v2/", "/api/", "/upload/")
_DEPLOYMENT: Final = re.compile(
    r"/openai/deployments/(?P<model>.+?)(?P<rest>/(?:chat/)?completions|/embeddings|/audio/\w+|/images/\w+)", re.DOTALL
)
_MOUNT: Final = re.compile(r"/p/(?P<provider>[^/]{1,64})(?P<rest>/.+)", re.DOTALL)


def family_of(headers: Mapping[bytes, bytes]) -> Family:
    """Return the vendor whose client sends these headers, for paths that several share.

    >>> family_of({b"anthropic-version": b"2023-06-01"})
    'anthropic'
    """
    if b"x-goog-api-key" in headers or b"x-goog-api-client" in headers:
        return "gemini"
    if b"anthropic-version" in headers:
        return "anthropic"
    return "openai"


def find_row(method: str, path: str, family: Family = "openai") -> EndpointRow | None:
    """Return the row of a method and a canonical path; None where there is none."""
    matched = _match(method, path, family)
    return None if matched is None else matched[0]


def locate(method: str, path: str, headers: Mapping[bytes, bytes]) -> Located | None:
    """Return the row that a request addresses; None where there is none.

    Paths may be mounted under `/p/PROVIDER`, may lack `/v1` or Gemini's `models/`, or may be Azure's, where the
    deployment is the model.

    >>> locate("POST", "/openai/deployments/up/m/chat/completions", {}).model
    'up/m'
    """
    family = family_of(headers)
    provider = None
    model = None
    if family != "gemini" and (located := _UNAMBIGUOUS.get((method, path))) is not None:
        return located
    if (mounted := _MOUNT.fullmatch(path)) is not None:
        provider = mounted["provider"]
        path = mounted["rest"]
    if (deployed := _DEPLOYMENT.fullmatch(path)) is not None:
        model = deployed["model"]
        path = f"/v1{deployed['rest']}"
    elif path.startswith("/openai/"):
        path = path.removeprefix("/openai")
    if family == "gemini" and path.startswith("/v1/"):  # its SDK uses both v1 and v1beta
        path = f"/v1beta/{path[4:]}"
    elif path.startswith("/v1/models/") and ":" in path:
        matched = _match(method, f"/v1beta/{path[4:]}", "gemini")
        if matched is not None and matched[0].path.startswith("/v1beta/models/{model}:"):
            return Located(matched[0], path, matched[1], model, provider)
    for candidate, candidate_family in _candidate_paths(path, family):
        matched = _match(method, candidate, candidate_family)
        if matched is not None:
            return Located(matched[0], candidate, matched[1], model, provider)
    return None


def _candidate_paths(path: str, family: Family) -> Iterator[tuple[str, Family]]:
    """Yield a path and its complete spellings, each with the family of its API, in the order to try."""
    yield path, family
    if path.startswith("/v1beta/") and ":" in path:
        # Clients write ids that contain a slash (PROVIDER/MODEL) without the folder of models before them.
        path = f"/v1beta/models/{path.removeprefix('/v1beta/')}"
        yield path, "gemini"
    if not path.startswith(_ROOTS):
        yield f"/v1{path}", family


def _match(method: str, path: str, family: Family) -> tuple[EndpointRow, Mapping[str, str]] | None:
    """Return the row of a method and path, that of the caller's API family first."""
    rows: list[tuple[EndpointRow, Mapping[str, str]]] = [(row, {}) for row in _EXACT.get(path, ())]
    rows = [each for each in rows if each[0].method in (method, "*")]
    for pattern, row in () if rows else _PATTERNS:
        if row.method in (method, "*") and (match := pattern.fullmatch(path)) is not None:
            rows.append((row, match.groupdict()))
    return next((each for each in rows if each[0].family == family), rows[0] if rows else None)


def methods_at(path: str, headers: Mapping[bytes, bytes]) -> list[str]:
    """Return the methods that are served at a path, for the error of a request with another."""
    candidates = (locate(method, path, headers) for method in ("GET", "POST", "DELETE"))
    return [each.row.method for each in candidates if each is not None and each.row.method != "*"]


def upstream_path(row: EndpointRow, codec: str, segments: Mapping[str, str], query: Mapping[str, str]) -> str:
    """Return the path at a provider, built from the template and quoted segments; raises where the provider has none.

    >>> upstream_path(_openai("GET", "/v1/files/{file}", "A file"), "openai-chat", {"file": "file-1"}, {"limit": "2"})
    '/files/file-1'
    """
    template = (row.upstream or {}).get(codec)
    if template is None:
        raise NotServedError(f"This provider has no {row.title.lower()}", hint="Ask another provider for it.")
    quoted = {name: quote(value, safe="") for name, value in segments.items() if name != "model"}
    path = template.format(**quoted)
    allowed = [f"{quote(name)}={quote(value, safe='')}" for name, value in query.items() if name in row.query]
    return f"{path}?{'&'.join(allowed)}" if allowed else path
