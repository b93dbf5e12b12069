"""Parse the bytes of a call: its models, its switches, and its request or the decision to forward it unchanged.

The names of models come first (`model_names`): they are checked before any is looked up, cached, counted or logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from slipform.addons.server.admission.admission import Caller
from slipform.addons.server.admission.output_limits import with_one_limit
from slipform.addons.server.calls.forward import ForwardedCall
from slipform.addons.server.calls.frames import (
    BoundCall,
    CallFrame,
    ForwardTemplate,
    SplitBody,
    around_conversation,
    keep_frame,
    split_body,
    split_fields,
)
from slipform.addons.server.calls.model_names import check_fields, is_named_plainly, requested_models
from slipform.addons.server.calls.parsed_body import BodyChecks, ParsedBody, check_depth, parse_body_async, write_body
from slipform.addons.server.calls.references import Ownership, Reference, marks_of
from slipform.addons.server.calls.replaced_ids import named_ids, with_vendor_ids
from slipform.addons.server.calls.request_switches import (
    FIELD,
    NOTHING,
    RequestSwitches,
    StreamMode,
    has_switches,
    switches_of,
)
from slipform.addons.server.calls.resources import AnswerMarks, CreationNotes, ResponseMarks
from slipform.addons.server.calls.shapes import asks_for_shape
from slipform.addons.server.calls.signed_turns import CallerTurns
from slipform.addons.server.calls.stored_responses import ResponseStore, StoredCall, open_call
from slipform.addons.server.calls.unsupported_fields import (
    RESPONSES,
    provider_names,
    refuse_unsupported,
    response_stores_of,
    state_fields,
)
from slipform.addons.server.observability.call_record import CallRecord
from slipform.codecs import ServedApi, ServedRequest
from slipform.codecs.foreign_fields import ForeignReading, read_foreign
from slipform.codecs.model_name import excerpt_of
from slipform.codecs.openai_responses.encode import LOADING_ITEM
from slipform.codecs.openai_responses.serve_encode import UNIQUE_CALL_IDS
from slipform.codecs.request_fields import dumps
from slipform.config import ModelAlias, ServerSettings, Settings
from slipform.enforce import Wording
from slipform.enforce.adoption import Adopted, AdoptionMode, find_schema, may_hold_schema
from slipform.enforce.prompts import first_request
from slipform.engine.planning import is_enforced
from slipform.errors import ConfigError, RequestError
from slipform.ir import Message, ModelRequest, ModelWarning
from slipform.ir.request import RequestFrame, is_heavy
from slipform.providers.concurrency import off_loop
from slipform.schema import OutputStrategy, Registry, ResponseFormat
from slipform.schema.limits import LARGE_BYTES, LIGHT_BYTES, check_size
from slipform.schema.python_types import cached_format

if TYPE_CHECKING:
    from slipform.addons.server.calls.routes import CallRouter

_OPENAI = frozenset({"openai-chat", "openai-responses", "openai-completions"})
"""The APIs that other servers imitate with fields of their own."""


class Inbound(msgspec.Struct, frozen=True):
    """A decoded call: its API, its request, its record, and how it is answered."""

    api: ServedApi
    served: ServedRequest
    record: CallRecord
    models: tuple[str, ...]
    """The models that the request names, in the caller's spelling: one, or several to try in turn."""
    switches: RequestSwitches = NOTHING
    stream_mode: StreamMode = "auto"
    """The mode that the request names, else the configured one."""
    warnings: tuple[ModelWarning, ...] = ()
    """Fields that were dropped or reinterpreted when the request was decoded."""
    forwarded: ForwardedCall | None = None
    """Set when the call is forwarded unchanged; `served` then has only the name of the model."""
    id_markers: AnswerMarks | None = None
    """Set when the provider stores part of the answer: marks the ids, and records their owner."""
    adopted: Adopted | None = None
    """Set when the schema was found in the prompt, so that the caller expects plain text."""
    turns: CallerTurns | None = None
    """The store of the parts that vendors signed in the caller's turns."""
    stored: StoredCall | None = None
    """Set when slipform stores the answer for later requests, because the vendor does not."""
    bound: BoundCall | None = None
    """Set when one model answers and nothing else is undecided; `served` then has the request to send to it."""


class CallContext(msgspec.Struct, frozen=True):
    """The context of a call: the caller, the path and headers, and the configuration in use."""

    path: str
    """The path as the API's own clients write it."""
    headers: Mapping[bytes, bytes]
    caller: Caller
    gate: CallRouter
    turns: CallerTurns
    responses: ResponseStore | None = None
    """The caller's stored responses; None where slipform stores none."""
    model: str | None = None
    """The model in the path of an API that names it in the body (Azure's deployments); the path takes precedence."""
    provider: str | None = None
    """The provider that the path or a header names; the model belongs to it."""


class NamedSchemas:
    """The schemas that a request may name, and the schemas of aliases."""

    def __init__(self, settings: Settings) -> None:
        self._registry = Registry.load(settings.schemas)
        self._by_alias: dict[str, str] = {}
        for alias, target in settings.model_aliases.items():
            if isinstance(target, ModelAlias) and target.response_schema is not None:
                if target.response_schema not in self._registry.schemas:
                    raise ConfigError(
                        f"Unknown schema {target.response_schema!r}",
                        where=f"model_aliases.{alias}.schema",
                        hint=f"The names are: {', '.join(sorted(self._registry.schemas))}.",
                    )
                self._by_alias[alias] = target.response_schema

    @property
    def documents(self) -> dict[str, Mapping[str, Any]]:
        """The schemas by name."""
        return {name: schema.document for name, schema in self._registry.schemas.items()}

    def find(self, switches: RequestSwitches, models: tuple[str, ...]) -> ResponseFormat | None:
        """Return the schema that the request names, else that of its alias; raises `RequestError` for unknown names."""
        name = switches.schema
        if name is None and self._by_alias and models:
            name = self._by_alias.get(models[0])
        if name is None:
            return None
        schema = self._registry.get(name)
        return cached_format(name, dict(schema.document), strict=False)


def read_without_parsing(
    api: ServedApi,
    body: bytes,
    record: CallRecord,
    headers: Mapping[bytes, bytes],
    caller: Caller,
    gate: CallRouter,
) -> Inbound | None:
    """Read a call that differs from an earlier one only in its conversation; return None for any other call."""
    if caller.budget is not None and caller.is_limited:
        return None
    match = gate.known_bodies.find(api, body, limits_models=caller.models is not None)
    if match is None:
        return None
    frame, split = match
    models = frame.models
    if caller.models is not None:
        record.model = models[0] if models else ""
        caller.check(models, gate.router)
    served = frame.served
    record.model = served.request.model
    record.stream = served.stream
    record.timeout = gate.settings.server.request_seconds
    template = frame.forward
    if template is not None:
        if caller.budget is not None or not split.has_unique_keys:
            return None
        forwarded = template.call(api.name, split, headers)
        record.provider = forwarded.provider.name
        record.upstream_model = forwarded.route.model
        return Inbound(api, served, record, models, NOTHING, frame.stream_mode, (), forwarded)
    record.enforced = frame.enforced
    record.schema = frame.schema
    served = frame.with_turns(split.messages)
    turns = CallerTurns(gate.turns, caller.id)
    bound = frame.bound
    return Inbound(api, served, record, models, NOTHING, frame.stream_mode, (), None, None, None, turns, None, bound)


async def read_call(api: ServedApi, body: bytes, record: CallRecord, context: CallContext) -> Inbound:
    """Decode and check a call; large bodies and schemas are read off the event loop.

    A model's name is looked up or stored only after the check that the caller may use it.
    """
    is_plain = not (context.model or context.provider or has_switches(context.headers))
    if is_plain:
        call = read_without_parsing(api, body, record, context.headers, context.caller, context.gate)
        if call is not None:
            return call
    # The body of a caller with a limited budget is rewritten, so no frame is stored for it.
    can_store_frame = is_plain and not (context.caller.budget is not None and context.caller.is_limited)
    split = split_body(api, body) if can_store_frame else None
    return await _read_parsed(api, body, record, context, split)


async def _read_parsed(
    api: ServedApi, body: bytes, record: CallRecord, context: CallContext, split: SplitBody | None
) -> Inbound:
    """Parse and decode a call; store its frame for later calls that differ only in the conversation (`split`)."""
    caller = context.caller
    router = context.gate.router
    is_large = len(body) >= LARGE_BYTES
    has_keys = context.gate.store is not None or caller.models is not None
    checks = BodyChecks(api.name != "gemini", has_keys, api.name == RESPONSES)  # Gemini names the model in the path
    data, body, references = await parse_body_async(body, checks)
    if context.model is not None or context.provider is not None:
        data, body, path = _with_model(api.name, data, body, context)
        context = msgspec.structs.replace(context, path=path)
    if caller.is_limited:  # the body is rewritten, so that every reader sees the limit that is reserved
        check_depth(data, body)
        data = with_one_limit(api.name, data)
        body = await asyncio.to_thread(dumps, data) if is_large else dumps(data)
    models = requested_models(api.name, data, context.path)
    if models:
        record.model = models[0]
    if caller.models is not None:
        caller.check(models, router)
        check_fields(data, names_model=api.name != "gemini")
    if api.name == RESPONSES:
        data, body, references = await _with_vendor_ids(ParsedBody(data, body, references), context.turns)
    parsed = ParsedBody(data, body, references)
    if api.name != RESPONSES or context.responses is None:
        return await _read_owned(api, parsed, record, models, context, split)
    parsed, options, stored = await open_call(parsed, context.responses, _ownership(models, context))
    call = await _read_owned(api, parsed, record, models, context, split)
    if not options:
        return call
    served = msgspec.structs.replace(call.served, options={**call.served.options, **options})
    turns = msgspec.structs.replace(context.turns, unique_ids=options.get(UNIQUE_CALL_IDS))
    return msgspec.structs.replace(call, served=served, stored=stored, turns=turns)


async def _read_owned(
    api: ServedApi,
    parsed: ParsedBody,
    record: CallRecord,
    models: tuple[str, ...],
    context: CallContext,
    split: SplitBody | None,
) -> Inbound:
    """Check that the caller owns the resources of the request, and decode it."""
    data, body, references = parsed
    if references:
        await _ownership(models, context).check(references)
        split = None
    switches = switches_of(data.get(FIELD), context.headers, context.gate.settings.max_attempts)
    if switches is not NOTHING or len(body) >= LARGE_BYTES or not _may_have_frame(api, data, context):
        call = await _read_anew(api, parsed, record, models, switches, context)
        if split is not None and (frame := _forward_frame(call, split, context)) is not None:
            context.gate.known_bodies.keep(api, split, frame, limits_models=context.caller.models is not None)
        return call
    call, frame = await _read_with_frame(api, parsed, record, models, context)
    if frame is not None and split is not None and split.messages == call.served.request.messages:
        context.gate.known_bodies.keep(api, split, frame, limits_models=context.caller.models is not None)
        if frame.bound is not None:
            call = msgspec.structs.replace(call, served=frame.with_turns(split.messages), bound=frame.bound)
    return call


async def _read_with_frame(
    api: ServedApi, parsed: ParsedBody, record: CallRecord, models: tuple[str, ...], context: CallContext
) -> tuple[Inbound, CallFrame | None]:
    """Decode a call with the stored frame of its fields; decode all of it and store its frame where there is none."""
    data = parsed.data
    fields = split_fields(api, data, context.path)
    frame = context.gate.frames.get(fields.key)
    if frame is not None:
        check_depth(data, parsed.body)
        messages = () if api.turns is None else api.turns(fields.turns)
        return _with_turns(api, frame, messages, record, context), frame
    call = await _read_anew(api, parsed, record, models, NOTHING, context)
    if api.name not in _OPENAI or read_foreign(api.name, data) is None:
        frame = _reusable_frame(fields.turns, call, context)
    if frame is not None:
        keep_frame(context.gate.frames, fields.key, fields.text_bytes, frame)
    return call, frame


async def _with_vendor_ids(parsed: ParsedBody, turns: CallerTurns) -> ParsedBody:
    """Return the request with the vendor's ids in place of those that the caller saw in a stream."""
    data, _, references = parsed
    ids = named_ids(data)
    vendor_ids = await turns.replaced_ids.vendor_ids(ids) if ids else {}
    if not vendor_ids:
        return parsed
    data = with_vendor_ids(data, vendor_ids)
    vendor_references = [each._replace(identity=vendor_ids.get(each.identity, each.identity)) for each in references]
    return ParsedBody(data, dumps(data), vendor_references)


class _ServedState(NamedTuple):
    """The marks of the ids in an answer, and the fields of the answer that describe stored state."""

    id_markers: AnswerMarks | None = None
    options: Mapping[str, Any] = {}


_NO_STATE = _ServedState()


class _CallFields(NamedTuple):
    """The fields of a call without slipform's own, with those of other servers translated."""

    api: ServedApi
    data: Mapping[str, Any]
    body: bytes
    models: tuple[str, ...]
    switches: RequestSwitches
    foreign: ForeignReading | None
    state: _ServedState
    schema: ResponseFormat | None
    """The one that the request, or its alias, names."""

    @property
    def warnings(self) -> tuple[ModelWarning, ...]:
        """Warnings about fields of other servers that were translated or dropped."""
        if self.foreign is None:
            return ()
        return self.foreign.warnings


async def _read_anew(
    api: ServedApi,
    parsed: ParsedBody,
    record: CallRecord,
    models: tuple[str, ...],
    switches: RequestSwitches,
    context: CallContext,
) -> Inbound:
    """Read all fields of a call."""
    data, body, references = parsed
    if FIELD in data:
        check_depth(data, body)
        data = {name: value for name, value in data.items() if name != FIELD}
        body = dumps(data)
    foreign = read_foreign(api.name, data) if api.name in _OPENAI else None
    if foreign is not None:
        check_depth(foreign.data, body)
        data = foreign.data
        body = dumps(foreign.data)
        record.warnings = len(foreign.warnings)
    refuse_unsupported(api.name, data, models, context.gate.router)
    state = _resolve_state(api.name, data, references, models, context)
    schema = context.gate.schemas.find(switches, models)
    fields = _CallFields(api, data, body, models, switches, foreign, state, schema)
    call = await _forwarded(fields, record, context) or await _enforced(fields, record, context)
    record.model = call.served.request.model
    record.stream = call.served.stream
    record.timeout = context.gate.settings.server.request_seconds
    return call


def _is_shaped(fields: _CallFields, settings: Settings) -> bool:
    """Return whether the answer must have a shape, as far as the fields of the request say."""
    data = fields.data
    if fields.schema is not None or settings.output.require_json or asks_for_shape(fields.api.name, data):
        return True
    if settings.enforcement.tools == "enforce" and data.get("tools"):
        return True
    return fields.foreign is not None and bool(fields.foreign.options)


def _adoption_mode(fields: _CallFields, settings: Settings) -> AdoptionMode:
    return fields.switches.adopt or settings.enforcement.adopt_schemas


def _stream_mode(fields: _CallFields, settings: Settings) -> StreamMode:
    return fields.switches.stream_mode or settings.enforcement.stream_mode


async def _forwarded(fields: _CallFields, record: CallRecord, context: CallContext) -> Inbound | None:
    """Return the call if it can be forwarded unchanged; None if its answer must be decoded."""
    api, data, body, models, switches, _, state, _ = fields
    settings = context.gate.settings
    is_shaped = _is_shaped(fields, settings)
    _check_evidence(switches, is_shaped=is_shaped)
    if is_shaped or (context.caller.budget is not None and _hides_usage(api, data)):
        return None
    mode = _adoption_mode(fields, settings)
    if mode == "all" and may_hold_schema(body):
        decoded = await _decoded(api, data, body, context.path, models)
        if find_schema(decoded.request, mode) is not None:
            return None
    match = context.gate.forward_routes.find(
        api.name, data, body, path=context.path, headers=context.headers, is_named_plainly=is_named_plainly(body)
    )
    if match is None:
        return None
    served, forwarded = match
    record.provider = forwarded.provider.name
    record.upstream_model = forwarded.route.model
    stream_mode = _stream_mode(fields, settings)
    return Inbound(api, served, record, models, switches, stream_mode, forwarded=forwarded, id_markers=state.id_markers)


async def _enforced(fields: _CallFields, record: CallRecord, context: CallContext) -> Inbound:
    """Return a call whose answer is decoded and, in most cases, validated."""
    api, data, body, models, switches, foreign, state, schema = fields
    settings = context.gate.settings
    served = await _decoded(api, data, body, context.path, models, schema)
    served, adopted = _adopt(served, _adoption_mode(fields, settings), settings.server)
    if settings.output.require_json:
        served = _as_json(served)
    if is_heavy(served.request):
        await off_loop(_check_schemas, served.request, settings.server)
    else:
        _check_schemas(served.request, settings.server)
    served = _switched(served, switches, foreign)
    if state.options:
        served = msgspec.structs.replace(served, options={**served.options, **state.options})
    record.schema_from = "" if adopted is None else adopted.library
    record.enforced = is_enforced(served.request, tools=settings.enforcement.tools == "enforce")
    if served.request.response_format is not None:
        record.schema = served.request.response_format.json_schema.name
    stream_mode = _stream_mode(fields, settings)
    return Inbound(
        api,
        served,
        record,
        models,
        switches,
        stream_mode,
        fields.warnings,
        adopted=adopted,
        id_markers=state.id_markers,
        turns=context.turns,
    )


def _may_have_frame(api: ServedApi, data: Mapping[str, Any], context: CallContext) -> bool:
    """Return whether a call has a shape or tools, and refers to nothing that a vendor stores."""
    if api.turns is None or FIELD in data or not (asks_for_shape(api.name, data) or data.get("tools")):
        return False
    if context.gate.store is not None and _creates(api.name, data):
        return False
    return api.name != RESPONSES or (next(state_fields(data), None) is None and not _loads_tools(data))


def _loads_tools(data: Mapping[str, Any]) -> bool:
    """Return whether items of a Responses request load tools, so that `tools` does not list all of them."""
    items = data.get("input")
    return isinstance(items, list) and any(type(item) is dict and item.get("type") == LOADING_ITEM for item in items)


def _reusable_frame(turns: Mapping[str, Any], call: Inbound, context: CallContext) -> CallFrame | None:
    """Return the decoded fields of a call without its conversation, for later calls that differ only in that.

    None where the conversation and the other fields depend on each other, so that they cannot be decoded separately.
    """
    read_turns = call.api.turns
    request = call.served.request
    if read_turns is None or request.json_mode:
        return None
    if call.forwarded or call.adopted or call.id_markers or call.warnings:
        return None
    if read_turns(turns) != request.messages:
        return None
    without_messages = request.replace(messages=(), frame=RequestFrame())
    served = msgspec.structs.replace(call.served, request=without_messages)
    bound = context.gate.bind(served, call.models) if call.record.enforced else None
    return CallFrame(served, call.stream_mode, call.record.enforced, call.record.schema, call.models, bound=bound)


def _forward_frame(call: Inbound, split: SplitBody, context: CallContext) -> CallFrame | None:
    """Return the frame of a forwarded call; None where more than its fields decides that it is forwarded."""
    forwarded = call.forwarded
    if forwarded is None or not isinstance(forwarded.body, bytes) or call.id_markers is not None:
        return None
    is_decided_by_fields = call.switches is NOTHING and not call.record.warnings and context.caller.budget is None
    if not is_decided_by_fields or context.gate.settings.enforcement.adopt_schemas == "all":
        return None
    around = around_conversation(forwarded.body, split.text)
    if around is None:
        return None
    template = ForwardTemplate(forwarded.provider, forwarded.route, forwarded.price, *around)
    return CallFrame(call.served, call.stream_mode, enforced=False, schema="", models=call.models, forward=template)


def _with_turns(
    api: ServedApi,
    frame: CallFrame,
    messages: Sequence[Message],
    record: CallRecord,
    context: CallContext,
) -> Inbound:
    """Return the call of a frame, with this conversation."""
    if not messages:
        raise _no_messages()
    before = frame.served
    request = before.request.replace(messages=messages)
    record.enforced = frame.enforced
    record.schema = frame.schema
    record.model = request.model
    record.stream = before.stream
    record.timeout = context.gate.settings.server.request_seconds
    served = ServedRequest(request, before.stream, before.options)
    return Inbound(api, served, record, frame.models, stream_mode=frame.stream_mode, turns=context.turns)


def _no_messages() -> RequestError:
    """Return the error for a call without a conversation."""
    return RequestError("The request has no messages", where="messages", hint="Send at least one.")


def _check_evidence(switches: RequestSwitches, *, is_shaped: bool) -> None:
    if switches.evidence is not None and not is_shaped:
        raise RequestError(
            "Evidence exists only for JSON values", where=f"{FIELD}.evidence", hint="Send a schema with it."
        )


def _as_json(served: ServedRequest) -> ServedRequest:
    """Return the request in JSON mode, which the prompt states too, unless it has a response format."""
    request = served.request
    if request.response_format is not None or request.json_mode:
        return served
    prompted = first_request(request.replace(json_mode=True), OutputStrategy.PROMPTED, Wording()).request
    return msgspec.structs.replace(served, request=prompted)


def _ownership(models: tuple[str, ...], context: CallContext) -> Ownership:
    providers = provider_names(models, context.gate.router)
    return Ownership(
        context.gate.store, context.caller.id, providers, response_stores_of(providers, context.gate.router)
    )


def _resolve_state(
    api: str, data: Mapping[str, Any], references: Sequence[Reference], models: tuple[str, ...], context: CallContext
) -> _ServedState:
    """Resolve which provider stores the answer to a call, or the resource that it creates."""
    if api != RESPONSES and not (context.gate.store is not None and _creates(api, data)):
        return _NO_STATE
    _, key, providers, keepers = _ownership(models, context)
    if len(providers) != 1:
        return _NO_STATE
    (provider,) = providers
    if api != RESPONSES:
        if context.gate.store is None:
            return _NO_STATE
        return _ServedState(CreationNotes(provider, context.gate.store, key))
    if not keepers:
        return _NO_STATE
    marked_ids = marks_of(references)
    before = data.get("previous_response_id")
    if isinstance(before, str):
        before = marked_ids.get(before, before)
    options = {"store": data.get("store") is not False, "previous_response_id": before}
    return _ServedState(ResponseMarks(provider, marked_ids, context.gate.store, key), options)


def _creates(api: str, data: Mapping[str, Any]) -> bool:
    """Return whether the vendor may store part of the answer under an id that a later request can name."""
    if api == "openai-chat":
        return data.get("audio") is not None
    if api != "anthropic":
        return False
    tools = data.get("tools")
    kinds = (each.get("type") for each in tools if isinstance(each, dict)) if isinstance(tools, list) else ()
    return data.get("container") is not None or any(str(kind).startswith("code_execution") for kind in kinds)


def _with_model(api: str, data: dict[str, Any], body: bytes, context: CallContext) -> tuple[dict[str, Any], bytes, str]:
    """Return the data, body and path with the model from the path, or with the provider's name before the model."""
    model = context.model or data.get("model")
    path = context.path
    if api == "gemini":
        head, _, rest = path.partition("/models/")
        if not rest.startswith(f"{context.provider}/"):
            path = f"{head}/models/{context.provider}/{rest}"
        return data, body, path
    if not isinstance(model, str):
        return data, body, path
    if context.provider is not None and not model.startswith(f"{context.provider}/"):
        model = f"{context.provider}/{model}"
    if data.get("model") != model:
        data = {**data, "model": model}
        body = write_body(data)
    return data, body, path


def _switched(served: ServedRequest, switches: RequestSwitches, foreign: ForeignReading | None) -> ServedRequest:
    if foreign is not None and foreign.options:
        served = msgspec.structs.replace(served, options={**served.options, **foreign.options})
    response_format = served.request.response_format
    if switches.strategy is None or response_format is None:
        return served
    request = served.request.replace(response_format=response_format.with_strategy(switches.strategy))
    return ServedRequest(request, served.stream, served.options)


def _hides_usage(api: ServedApi, data: Mapping[str, Any]) -> bool:
    """Return whether a streamed answer would lack its tokens: OpenAI's chat API sends them only on request."""
    if api.name != "openai-chat" or data.get("stream") is not True:
        return False
    options = data.get("stream_options")
    return not (isinstance(options, Mapping) and options.get("include_usage") is True)


async def _decoded(
    api: ServedApi,
    data: Mapping[str, Any],
    body: bytes,
    path: str,
    models: tuple[str, ...],
    named: ResponseFormat | None = None,
) -> ServedRequest:
    if models and isinstance(data.get("model"), list):  # slipform's own form: decoders expect one name
        data = {**data, "model": models[0]}
    if len(body) >= LARGE_BYTES:
        return await asyncio.to_thread(_decode, api, data, body, path, named)
    return _decode(api, data, body, path, named)


def _decode(
    api: ServedApi, data: Mapping[str, Any], body: bytes, path: str, named: ResponseFormat | None
) -> ServedRequest:
    check_depth(data, body)
    served = api.decode_request(data, path=path)
    request = served.request
    if named is not None:
        own = request.response_format
        if own is not None and own.json_schema.schema != named.json_schema.schema:
            raise RequestError(
                f"The request has a schema, and another is named: {excerpt_of(named.json_schema.name)}",
                where="slipform.schema",
                hint="Send one of the two.",
            )
        request = request.replace(response_format=own or named, json_mode=False)
        served = msgspec.structs.replace(served, request=request)
    if not request.messages:
        raise _no_messages()
    return served


def _adopt(served: ServedRequest, mode: AdoptionMode, limits: ServerSettings) -> tuple[ServedRequest, Adopted | None]:
    """Return the request with the schema in its prompt as the response format, if there is one within the limits."""
    if mode == "off" or (mode == "json_mode" and not served.request.json_mode):
        return served, None
    adopted = find_schema(served.request, mode)
    if adopted is None:
        return served, None
    request = served.request.replace(response_format=adopted.format, json_mode=False)
    try:
        _check_schemas(request, limits)
    except RequestError:
        return served, None
    return ServedRequest(request, served.stream, served.options), adopted


def _check_schemas(request: ModelRequest, limits: ServerSettings) -> None:
    """Raise (413) for a request whose schemas together exceed the limits, before any of them is compiled."""
    response_format = request.response_format
    is_light = not request.tools and (response_format is None or response_format.json_schema.is_light)
    if is_light and min(limits.max_schema_bytes, limits.max_schema_nodes) >= LIGHT_BYTES:
        return
    schemas = {f"tools[{index}]": tool.parameters for index, tool in enumerate(request.tools)}
    if request.response_format is not None:
        schemas["response_format"] = request.response_format.json_schema.schema
    if schemas:
        check_size(schemas, limits.max_schema_bytes, limits.max_schema_nodes)
