"""Wrap an OpenAI or Anthropic SDK client so that its answers are enforced: `wrap`.

`APIS` describes the SDKs' APIs: the fields of the schema, the messages, the text and the usage.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar, cast, get_args

from slipform.codecs import BoundCodec, Capabilities, EncodedRequest, ServedApi, ServedRequest, find_api, make_codec
from slipform.codecs.answer import lifted
from slipform.enforce import Outcome, Plan, Report
from slipform.engine.drive import AsyncModel, Model, evidence_collector, run, run_async
from slipform.engine.planning import enforced_tools, is_enforced, requires_call, wanted_schema
from slipform.engine.setup import Options
from slipform.errors import ConfigError, EnforcementError, RefusalError, RequestError, TruncatedError
from slipform.ir import Lift, Message, ModelRequest, ModelResponse, Usage
from slipform.providers.base import as_chunks
from slipform.schema import OutputStrategy, ResponseFormat, Schema
from slipform.schema.lowering.lowered import lower
from slipform.text.strict import compact_json, parse

_ENCODED: Final = EncodedRequest("", b"")
_TOOLS: Final = ("tools", "tool_choice")


@dataclass(frozen=True, slots=True)
class WrappedApi:
    """One API of an SDK: the fields with schema and messages, and setters for its objects."""

    serving: ServedApi
    codec: BoundCodec
    dialect: str
    schema_fields: tuple[str, ...]
    messages_field: str
    format_fields: Callable[[Mapping[str, Any], str, Mapping[str, Any]], dict[str, Any]]
    """Returns the fields that request a schema, from the call's body, the schema's name and the schema."""
    set_text: Callable[[Any, str], None]
    """Sets the text of an SDK response."""
    set_calls: Callable[[Any, Any], None]
    """Replaces the tool calls, and the text beside them, of an SDK response by those of another."""
    set_usage: Callable[[Any, Usage], None]
    """Sets the tokens of an SDK usage object."""
    build_event: Callable[[Mapping[str, Any]], Any]
    """Returns the SDK's stream event for its data."""

    def requested(self, body: Mapping[str, Any]) -> ModelRequest | None:
        """Return the schema and tools of a call, as a request without messages; None if slipform knows none in it."""
        named = {name: body[name] for name in (*self.schema_fields, *_TOOLS) if _is_readable(body.get(name))}
        without = {name: value for name, value in named.items() if name not in _TOOLS}
        return self._decoded(body, named) or self._decoded(body, without)

    def _decoded(self, body: Mapping[str, Any], named: Mapping[str, Any]) -> ModelRequest | None:
        if not named:
            return None
        request_body = {"model": str(body.get("model") or "unknown"), self.messages_field: [], **named}
        try:
            return self.serving.decode_request(request_body).request
        except RequestError:  # a vendor's field that slipform does not know: the vendor will validate it
            return None

    def messages(self, body: Mapping[str, Any]) -> tuple[Message, ...]:
        """Return the conversation of a call; empty if it contains parts that slipform does not know."""
        try:
            body_of_turns = {"model": "unknown", self.messages_field: body.get(self.messages_field) or []}
            return tuple(self.serving.decode_request(body_of_turns).request.messages)
        except RequestError:
            return ()

    def read(self, response: Any) -> ModelResponse:
        """Return an SDK response as a `ModelResponse`."""
        return self.codec.decode_response(response.model_dump_json().encode(), _ENCODED)

    def with_messages(self, body: Mapping[str, Any], messages: Sequence[Message]) -> dict[str, Any]:
        """Return the call's body with messages added to its conversation."""
        if not messages:
            return dict(body)
        before = body.get(self.messages_field)
        if isinstance(before, str):
            before = [{"role": "user", "content": before}]
        encoded = parse(self.codec.encode_request(ModelRequest("unknown", tuple(messages)), stream=False).body)
        return {**body, self.messages_field: [*(before or ()), *encoded[self.messages_field]]}

    def with_answer(self, response: Any, outcome: Outcome) -> Any:
        """Return a copy of the SDK response that holds the valid answer and the tokens of all attempts."""
        copy = response.model_copy(deep=True)
        if outcome.response.tool_calls:
            body = self.serving.encode_response(outcome.answer, ServedRequest(ModelRequest("unknown", ())))
            self.set_calls(copy, type(response).construct(**parse(body)))
        else:
            self.set_text(copy, outcome.text)
        if copy.usage is not None and len(outcome.report.attempts) > 1:
            self.set_usage(copy.usage, outcome.report.usage)
        return copy


def _is_readable(value: Any) -> bool:
    """Return whether a field has a JSON value: the SDKs mark omitted fields with sentinels."""
    return isinstance(value, Mapping | list | tuple | str)


def _set_chat_text(response: Any, text: str) -> None:
    response.choices[0].message.content = text


def _set_responses_text(response: Any, text: str) -> None:
    for item in response.output:
        if item.type == "message":
            _set_text(item.content, "output_text", text)


def _set_messages_text(response: Any, text: str) -> None:
    _set_text(response.content, "text", text)


def _set_chat_calls(response: Any, other: Any) -> None:
    choice = response.choices[0]
    other_choice = other.choices[0]
    choice.finish_reason = other_choice.finish_reason
    choice.message.content = other_choice.message.content
    choice.message.tool_calls = other_choice.message.tool_calls


def _set_responses_calls(response: Any, other: Any) -> None:
    response.output = _replace_items(response.output, other.output, {"message", "function_call"})


def _set_messages_calls(response: Any, other: Any) -> None:
    response.content = _replace_items(response.content, other.content, {"text", "tool_use"})
    response.stop_reason = other.stop_reason


def _replace_items(items: list[Any], others: list[Any], kinds: set[str]) -> list[Any]:
    """Return the items, with those of the `kinds` replaced by `others`."""
    return [*(item for item in items if item.type not in kinds), *others]


def _set_text(blocks: list[Any], kind: str, text: str) -> None:
    """Put the whole text into the first text block and remove the others."""
    texts = [block for block in blocks if block.type == kind]
    texts[0].text = text
    blocks[:] = [block for block in blocks if block.type != kind or block is texts[0]]


def _set_chat_usage(usage: Any, tokens: Usage) -> None:
    usage.prompt_tokens = tokens.input or 0
    usage.completion_tokens = tokens.output or 0
    usage.total_tokens = tokens.total or usage.prompt_tokens + usage.completion_tokens


def _set_usage(usage: Any, tokens: Usage) -> None:
    usage.input_tokens = tokens.input or 0
    usage.output_tokens = tokens.output or 0
    if hasattr(usage, "total_tokens"):
        usage.total_tokens = tokens.total or usage.input_tokens + usage.output_tokens


def _chat_format(_body: Mapping[str, Any], name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    output_format = {"name": name, "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": output_format}}


def _responses_format(body: Mapping[str, Any], name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    output_format = {"type": "json_schema", "name": name, "strict": True, "schema": schema}
    return {"text": {**_as_mapping(body.get("text")), "format": output_format}}


def _messages_format(body: Mapping[str, Any], _name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    output_format = {"type": "json_schema", "schema": schema}
    return {"output_config": {**_as_mapping(body.get("output_config")), "format": output_format}}


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _chat_chunk(data: Mapping[str, Any]) -> Any:
    return import_module("openai.types.chat").ChatCompletionChunk.construct(**data)


def _response_event(data: Mapping[str, Any]) -> Any:
    return _event_classes("openai.types.responses", "ResponseStreamEvent")[data["type"]].construct(**data)


def _message_event(data: Mapping[str, Any]) -> Any:
    return _event_classes("anthropic.types", "RawMessageStreamEvent")[data["type"]].construct(**data)


@functools.cache
def _event_classes(module: str, union: str) -> Mapping[str, Any]:
    """Return the classes of an SDK's events by their `type`; like the SDK, callers build them without validation."""
    kinds = get_args(getattr(import_module(module), union))
    kinds = get_args(kinds[0]) or kinds  # an annotated union
    return {name: kind for kind in kinds for name in get_args(kind.model_fields["type"].annotation)}


APIS: Final[Mapping[str, WrappedApi]] = {
    "/chat/completions": WrappedApi(
        serving=find_api("openai-chat"),
        codec=make_codec("openai-chat", Capabilities()),
        dialect="openai",
        schema_fields=("response_format",),
        messages_field="messages",
        format_fields=_chat_format,
        set_text=_set_chat_text,
        set_calls=_set_chat_calls,
        set_usage=_set_chat_usage,
        build_event=_chat_chunk,
    ),
    "/responses": WrappedApi(
        serving=find_api("openai-responses"),
        codec=make_codec("openai-responses", Capabilities()),
        dialect="openai",
        schema_fields=("text",),
        messages_field="input",
        format_fields=_responses_format,
        set_text=_set_responses_text,
        set_calls=_set_responses_calls,
        set_usage=_set_usage,
        build_event=_response_event,
    ),
    "/v1/messages": WrappedApi(
        serving=find_api("anthropic"),
        codec=make_codec("anthropic", Capabilities()),
        dialect="anthropic",
        schema_fields=("output_config", "output_format"),
        messages_field="messages",
        format_fields=_messages_format,
        set_text=_set_messages_text,
        set_calls=_set_messages_calls,
        set_usage=_set_usage,
        build_event=_message_event,
    ),
}
"""The APIs by the path of their requests."""


_CLOSURE_NAMES: Final = ("response_format", "text_format", "output_format")


class _Response:
    """Replaces the HTTP response of a stream, which has ended and may have been several."""

    status_code = 200
    headers: Mapping[str, str] = MappingProxyType({})

    def close(self) -> None:
        """Do nothing: no connection is open."""

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


class Replay:
    """Replaces the SDKs' `Stream`: iterate over it, or open it with `with`."""

    def __init__(self, events: Iterator[Any], report: Report) -> None:
        self._events = events
        self.response = _Response()
        self.slipform_report = report

    def __iter__(self) -> Iterator[Any]:
        return self._events

    def __next__(self) -> Any:
        return next(self._events)

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncReplay:
    """Replaces the SDKs' `AsyncStream`."""

    def __init__(self, events: Iterator[Any], report: Report) -> None:
        self._events = events
        self.response = _Response()
        self.slipform_report = report

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        for event in self._events:
            return event
        raise StopAsyncIteration

    async def close(self) -> None:
        """Do nothing: no connection is open."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


C = TypeVar("C")
_SDKS: Final = ("openai", "anthropic")
_DEFAULT: Final = Options()
_RAW_RESPONSE: Final = "x-stainless-raw-response"
"""The header by which the SDKs request the raw HTTP response."""


def wrap(client: C, *, options: Options | None = None) -> C:
    """Return a copy of the client that enforces the answers to calls with a JSON Schema or tools.

    ::

        client = slipform.wrap(OpenAI())
        client.chat.completions.create(model=…, messages=…, response_format={"type": "json_schema", …})

    Takes `openai.OpenAI`, `anthropic.Anthropic` and their async twins, and does not change the client passed in. Calls
    stay the same: `create`, `parse` and `stream` of `chat.completions`, `responses` and `messages`, with a schema, a
    type, tools or JSON mode, return the SDK's own response with its text and tool calls repaired, patched or, within
    the budget (3 calls in all), retried; then its usage is that of all calls. `report_of(response)` is its report. A
    streamed answer is validated first and then replayed as a stream. A refusal stays what it is in the SDK, a response
    with `refusal` or a finish reason; so does an answer that `parse` has its own error for, one cut off by the token
    limit. Raises `EnforcementError` when no answer is valid, `RequestError` for more than one choice (`n`) with a
    schema. Raw responses pass through with a warning, calls without a schema without one.
    """
    kind = type(client)
    if not any(each.__module__.partition(".")[0] in _SDKS for each in kind.__mro__):
        raise ConfigError(
            f"A {kind.__module__}.{kind.__name__} cannot be wrapped",
            hint="Give an openai or anthropic client, or use slipform.Client.",
        )
    wrapped = cast("Any", client).copy()
    effective = options or _DEFAULT
    awaits = any(each.__name__.startswith("Async") for each in kind.__mro__)
    # All calls and helpers of the SDKs send their requests through the client's `post`.
    wrapped.post = (_enforce_post_async if awaits else _enforce_post)(wrapped.post, effective)
    copy = wrapped.copy
    wrapped.copy = wrapped.with_options = lambda **changes: wrap(copy(**changes), options=effective)
    return cast("C", wrapped)


def report_of(response: object) -> Report:
    """Return the report of a response, or of a stream, that came from a wrapped client.

    Raises `TypeError` for any other object, and for a call without anything to enforce.
    """
    report = getattr(response, "slipform_report", None)
    if not isinstance(report, Report):
        raise TypeError(
            f"This {type(response).__name__} has no report: it is not from a wrapped client, "
            "or its call had no schema, type or tools"
        )
    return report


@dataclass(frozen=True, slots=True)
class _WrappedCall:
    """One enforced call of a wrapped client: the request, and the requirement on its answer."""

    api: WrappedApi
    body: Mapping[str, Any]
    post_arguments: Mapping[str, Any]
    """The other arguments of the SDK's `post`."""
    request: ModelRequest
    schema: Schema[Any] | None = None
    lift: Lift | None = None
    parser: Callable[[Any], Any] | None = None
    """The SDK's parser of a whole response."""
    streamed: bool = False

    def next_post(self, request: ModelRequest) -> dict[str, Any]:
        """Count one more call and return its `post` arguments: the caller's, with the loop's messages appended."""
        if request.calls is not None:
            request.calls.add(request.model)
        return {**self.post_arguments, "body": self.api.with_messages(self.body, request.messages)}

    def read(self, response: Any) -> ModelResponse:
        """Return an SDK response as a `ModelResponse`, in the caller's shape."""
        read = self.api.read(response)
        if self.lift is None:
            return read
        return lifted(read, self.lift)

    def events(self, answer: ModelResponse) -> Iterator[Any]:
        """Yield the events that the SDK would have read from the vendor."""
        served = ServedRequest(self.request, stream=True, options={"include_usage": True})
        encoder = self.api.serving.encode_stream(served)
        body = b"".join((*map(encoder.feed, as_chunks(answer)), encoder.finish()))
        for line in body.split(b"\n"):
            if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                yield self.api.build_event(parse(data))

    def sdk_response(self, response: Any, outcome: Outcome) -> Any:
        """Return the SDK's response unchanged if it was valid at once, else a copy with the valid answer."""
        valid = response if self._was_valid(response, outcome) else self.api.with_answer(response, outcome)
        return self._with_report(valid, outcome.report)

    def declined(self, response: Any, error: EnforcementError) -> Any:
        """Return the SDK's own response for a refused or truncated answer, if the SDK returns one.

        Raises the error where the SDK would return a response as if nothing had happened.
        """
        if isinstance(error, TruncatedError) and (self.parser is None or self.streamed):
            raise error
        report = error.report if isinstance(error.report, Report) else Report()
        if self.streamed:
            return Replay(self.events(self.read(response)), report)
        return self._with_report(response, report)

    def _with_report(self, response: Any, report: Report) -> Any:
        parsed = response if self.parser is None else self.parser(response)
        parsed.slipform_report = report
        return parsed

    def _was_valid(self, response: Any, outcome: Outcome) -> bool:
        """Return whether the SDK's own response equals the outcome, so that it can be returned unchanged."""
        if len(outcome.report.attempts) > 1:
            return False
        answer = self.api.read(response)
        if outcome.response.tool_calls or answer.tool_calls:
            return [(call.id, call.arguments) for call in answer.tool_calls] == [
                (call.id, call.arguments) for call in outcome.response.tool_calls
            ]
        if self.schema is None and self.request.response_format is None and not self.request.json_mode:
            return True
        try:
            return compact_json(parse(answer.text)) == compact_json(outcome.value)
        except ValueError:
            return False


def _enforce_post(post: Callable[..., Any], options: Options) -> Callable[..., Any]:
    def enforced(path: str, **post_arguments: Any) -> Any:
        call = _enforced_call(path, post_arguments, options)
        if call is None:
            return post(path, **post_arguments)
        answers: list[Any] = []

        def complete(request: ModelRequest) -> ModelResponse:
            answers.append(post(path, **call.next_post(request)))
            return call.read(answers[-1])

        try:
            outcome = run(call.request, _plan(call, options), Model(complete))
        except (RefusalError, TruncatedError) as error:
            return call.declined(answers[-1], error)
        if call.streamed:
            return Replay(call.events(outcome.answer), outcome.report)
        return call.sdk_response(answers[-1], outcome)

    return enforced


def _enforce_post_async(post: Callable[..., Awaitable[Any]], options: Options) -> Callable[..., Awaitable[Any]]:
    async def enforced(path: str, **post_arguments: Any) -> Any:
        call = _enforced_call(path, post_arguments, options)
        if call is None:
            return await post(path, **post_arguments)
        answers: list[Any] = []

        async def complete(request: ModelRequest) -> ModelResponse:
            answers.append(await post(path, **call.next_post(request)))
            return call.read(answers[-1])

        try:
            outcome = await run_async(call.request, _plan(call, options), AsyncModel(complete))
        except (RefusalError, TruncatedError) as error:
            response = call.declined(answers[-1], error)
            if call.streamed:
                return AsyncReplay(iter(response), response.slipform_report)
            return response
        if call.streamed:
            return AsyncReplay(call.events(outcome.answer), outcome.report)
        return call.sdk_response(answers[-1], outcome)

    return enforced


def _without(mapping: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name not in names}


def _enforced_call(path: str, post_arguments: Mapping[str, Any], options: Options) -> _WrappedCall | None:
    """Return how a call is enforced; None if it has no schema or tools, or requests the raw response."""
    api = APIS.get(path.partition("?")[0])
    body = post_arguments.get("body")
    if api is None or not isinstance(body, Mapping):
        return None
    sdk_options = post_arguments.get("options") or {}
    request = api.requested({**body, **(sdk_options.get("extra_json") or {})})
    if request is None or not is_enforced(request, tools=options.tools == "enforce"):
        return None
    if any(name.lower() == _RAW_RESPONSE for name in sdk_options.get("headers") or ()):
        warnings.warn("slipform.wrap does not enforce raw responses; use the plain call, or the proxy.", stacklevel=5)
        return None
    if isinstance(body.get("n"), int) and body["n"] > 1:
        raise RequestError(
            "slipform.wrap enforces one answer per call, and this call asks for more",
            where="n",
            hint="Call once for each answer.",
        )
    parser = sdk_options.get("post_parser")
    plain_options = _without(sdk_options, {"post_parser"})
    arguments = _without(post_arguments, {"body", "options", "stream", "stream_cls"})
    body = _without(body, {"stream", "stream_options"})
    streamed = post_arguments.get("stream") is True
    call = _WrappedCall(api, body, {**arguments, "options": plain_options}, request, parser=parser, streamed=streamed)
    shape = _type_of(parser)
    if shape is None:
        return call
    return _with_type(call, Schema.of(shape))


def _type_of(parser: Any) -> type[Any] | None:
    """Return the type that the SDK's parser builds, which is only available in its closure."""
    if not inspect.isfunction(parser):
        return None
    variables = inspect.getclosurevars(parser).nonlocals
    return next((variables[name] for name in _CLOSURE_NAMES if isinstance(variables.get(name), type)), None)


def _with_type(call: _WrappedCall, schema: Schema[Any]) -> _WrappedCall:
    """Return the call with the schema of its type as slipform lowers it for the vendor.

    The SDK's own schema of the type is in the body already, but it drops keywords that the vendor does not know and
    makes optional fields required: answers are validated against the type itself.
    """
    lowered = lower(schema.document, call.api.dialect, open_objects="closed")
    lift = None if lowered.identity else Lift(lowered.schema, lowered.lift, lowered.plan)
    body = {**call.body, **call.api.format_fields(call.body, schema.name, lowered.schema)}
    request = call.request.replace(response_format=ResponseFormat.strict(schema.spec))
    return replace(call, body=body, request=request, schema=schema, lift=lift)


def _plan(call: _WrappedCall, options: Options) -> Plan:
    """Return the enforcement plan: the SDK sends the schema itself, and cannot reach another model."""
    request = call.request
    plan = Plan(
        schema=call.schema or wanted_schema(request),
        strategy=OutputStrategy.NATIVE,
        tools=enforced_tools(request, options),
        must_call=requires_call(request, options),
        guard=options.guard,
        **{**Plan.shared(options), "reask_scope": "full"},
    )
    if options.evidence is None:
        return plan
    request = request.replace(messages=call.api.messages(call.body))
    return evidence_collector().prepare(plan, request, options.evidence)
