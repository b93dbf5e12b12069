"""The bytes of a call → the call: the models it names, its switches, its request, or that it goes through as it is.

The names of models come first: they are checked before one is looked up, cached, counted or logged.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

import orjson

from slipform.codecs import Api, ServedRequest
from slipform.codecs.gemini.serve_decode import named_in_path
from slipform.codecs.model_name import check_name, shown
from slipform.codecs.request_fields import dumps, read_body
from slipform.config import ServerSettings, Settings
from slipform.enforce.adoption import Adopted, AdoptionMode, find_schema, may_hold_schema
from slipform.engine.planning import is_enforced
from slipform.errors import RequestError
from slipform.ir import ModelRequest
from slipform.ir.request import is_heavy
from slipform.providers.concurrency import off_loop
from slipform.providers.router import Router
from slipform.proxy.admission.admission import Caller
from slipform.proxy.admission.refusals import NotAllowed
from slipform.proxy.calls.forward import ForwardedCall, ForwardRoutes
from slipform.proxy.observability.call_record import CallRecord
from slipform.schema import OutputStrategy
from slipform.schema.limits import LARGE_BYTES, LIGHT_BYTES, check_size

FIELD = "slipform"
StreamMode: TypeAlias = Literal["auto", "live", "buffer", "reject"]
_PREFIX = b"x-slipform-"
_LONGEST = 60
_MODES = ("auto", "live", "buffer", "reject")
_ADOPTIONS = ("off", "json_mode", "all")
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_OTHERS = frozenset({"request_id", "cache", "key"})
"""Headers with the same beginning that are somebody else's business."""


@dataclass(frozen=True, slots=True)
class RequestSwitches:
    """The switches of one request; what is not set is as the configuration says."""

    report: bool = False
    strategy: OutputStrategy | None = None
    stream_mode: StreamMode | None = None
    max_attempts: int | None = None
    adopt: AdoptionMode | None = None


NOTHING = RequestSwitches()


def switches_of(field: Any, headers: Mapping[bytes, bytes], most_attempts: int) -> RequestSwitches:
    """The switches of a request, the body's before the headers'; a name or value that is wrong is a `RequestError`.

    >>> switches_of({"report": True}, {b"x-slipform-max-attempts": b"2"}, 3)
    RequestSwitches(report=True, strategy=None, stream_mode=None, max_attempts=2, adopt=None)
    """
    asked = NOTHING
    for name, value in headers.items():
        if name[:11] == _PREFIX:
            known = name[11:].decode("latin-1").replace("-", "_")
            if known not in _OTHERS:
                asked = _with(asked, known, value.decode("latin-1"), f"header {name.decode('latin-1')}", most_attempts)
    if field is None:
        return asked
    if not isinstance(field, Mapping):
        raise RequestError("Expected an object of switches", where=FIELD, hint=_hint())
    for name, value in field.items():
        asked = _with(asked, name, value, f"{FIELD}.{name}", most_attempts)
    return asked


def _with(asked: RequestSwitches, name: str, value: Any, where: str, most_attempts: int) -> RequestSwitches:
    read = _READERS.get(name)
    if read is None:
        raise RequestError(f"There is no switch {shown(name)}", where=where[:_LONGEST], hint=_hint())
    try:
        found = read(value)
    except (ValueError, KeyError, TypeError):
        raise RequestError(f"{shown(value)} is no value of the switch {name!r}", where=where, hint=_hint()) from None
    if name == "max_attempts" and not 1 <= found <= most_attempts:
        raise RequestError(f"Between 1 and {most_attempts} attempts are allowed here", where=where)
    return replace(asked, **{name: found})


def _flag(value: Any) -> bool:
    return value if isinstance(value, bool) else _WORDS[str(value).lower()]


def _count(value: Any) -> int:
    if isinstance(value, bool | float):
        raise TypeError
    return int(value)


def _mode(value: Any) -> StreamMode:
    if value not in _MODES:
        raise ValueError
    return cast("StreamMode", value)


def _adoption(value: Any) -> AdoptionMode:
    if value not in _ADOPTIONS:
        raise ValueError
    return cast("AdoptionMode", value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "report": _flag,
    "strategy": OutputStrategy,
    "stream_mode": _mode,
    "max_attempts": _count,
    "adopt": _adoption,
}


def _hint() -> str:
    strategies = ", ".join(each.value for each in OutputStrategy)
    return (
        f"The switches are report (true or false), strategy ({strategies}), stream_mode ({', '.join(_MODES)}), "
        f"max_attempts (a number) and adopt ({', '.join(_ADOPTIONS)})."
    )


_WRITABLE = 254
"""Levels that `orjson` writes; it reads four times as many."""
_DEEPEST = 230
"""What leaves is a few levels deeper than what came."""


class Inbound(NamedTuple):
    """A call on its way: in which API it came, what was decoded, the bytes themselves, and what is known of it."""

    api: Api
    served: ServedRequest
    body: bytes
    record: CallRecord
    models: tuple[str, ...]
    """Those it names, as its caller wrote them: one, or several to be asked one after the other."""
    asked: RequestSwitches = NOTHING
    stream_mode: StreamMode = "auto"
    """As it was asked for, else as the configuration says."""
    forwarded: ForwardedCall | None = None
    """Set when the call goes through untouched; `served` then holds no more than the model's name."""
    adopted: Adopted | None = None
    """Set when the schema was found in the prompt; its caller did not ask for more than the text."""


async def read_call(
    api: Api,
    body: bytes,
    record: CallRecord,
    *,
    path: str,
    headers: Mapping[bytes, bytes],
    caller: Caller,
    router: Router,
    ways: ForwardRoutes,
    settings: Settings,
) -> Inbound:
    """The call, checked; a large one is read, and large schemas are looked at, off the event loop.

    Nothing is looked up or kept for a name before it is known that the caller may use it.
    """
    large = len(body) >= LARGE_BYTES
    data = await asyncio.to_thread(_read, api, body) if large else _read(api, body)
    models = requested_models(api.name, data, path)
    if models:
        record.model = models[0]
    if caller.models is not None:
        caller.check(models, router)
        check_fields(data, api.name)
    asked = switches_of(data.get(FIELD), headers, settings.enforcement.max_attempts)
    if FIELD in data:
        _check_depth(data, body)
        data = {name: value for name, value in data.items() if name != FIELD}
        body = dumps(data)
    mode = asked.stream_mode or settings.enforcement.stream_mode
    enforces_tools = settings.enforcement.tools == "enforce"
    shaped = _SHAPES[api.name](data) or (enforces_tools and data.get("tools"))
    adoption = asked.adopt or settings.enforcement.adopt_schemas
    through, adopted = None, None
    if not shaped and adoption == "all" and may_hold_schema(body):
        adopted = find_schema((await _decoded(api, data, body, path, models)).request, adoption)
    if not shaped and adopted is None:
        plain = is_named_plainly(body)
        through = ways.find(api.name, data, body, path=path, headers=headers, is_named_plainly=plain)
    if through is not None:
        served, forwarded = through
        call = Inbound(api, served, body, record, models, asked, mode, forwarded)
        record.provider, record.upstream_model = forwarded.provider.name, forwarded.route.model
    else:
        served = await _decoded(api, data, body, path, models)
        served, adopted = _adopt(served, adoption, settings.server)
        if is_heavy(served.request):
            await off_loop(_check_schemas, served.request, settings.server)
        else:
            _check_schemas(served.request, settings.server)
        call = Inbound(api, _switched(served, asked), body, record, models, asked, mode, adopted=adopted)
        record.schema_from = "" if adopted is None else adopted.library
        record.enforced = is_enforced(served.request, tools=enforces_tools)
        if served.request.response_format is not None:
            record.schema = served.request.response_format.json_schema.name
    record.model, record.stream = served.request.model, served.stream
    record.timeout = settings.server.request_seconds
    return call


def _chat_shape(data: Mapping[str, Any]) -> bool:
    return _is_shape(data.get("response_format"))


def _responses_shape(data: Mapping[str, Any]) -> bool:
    text = data.get("text")
    return not isinstance(text, Mapping | None) or (text is not None and _is_shape(text.get("format")))


def _messages_shape(data: Mapping[str, Any]) -> bool:
    config = data.get("output_config")
    inner = config.get("format") if isinstance(config, Mapping) else config
    return _is_shape(inner) or _is_shape(data.get("output_format"))


def _gemini_shape(data: Mapping[str, Any]) -> bool:
    config = data.get("generationConfig", data.get("generation_config"))
    if not isinstance(config, Mapping):
        return config is not None
    # Whatever is said about the answer's form is left to the codec to understand.
    return any(name.replace("_", "").lower().startswith("response") for name in config)


def _is_shape(wanted: Any) -> bool:
    return wanted is not None and not (isinstance(wanted, Mapping) and wanted.get("type", "text") == "text")


_SHAPES = {
    "openai-chat": _chat_shape,
    "openai-responses": _responses_shape,
    "anthropic": _messages_shape,
    "gemini": _gemini_shape,
}
"""Whether a body in an API asks for a shape; what is said in a form that nobody knows is left to the codec."""


def _read(api: Api, body: bytes) -> dict[str, Any]:
    data = read_body(body)
    if api.name != "gemini":  # which names the model in the path
        check_named_once(body)
    return data


def _switched(served: ServedRequest, asked: RequestSwitches) -> ServedRequest:
    wanted = served.request.response_format
    if asked.strategy is None or wanted is None:
        return served
    request = served.request.replace(response_format=wanted.with_strategy(asked.strategy))
    return ServedRequest(request, served.stream, served.options)


async def _decoded(api: Api, data: Mapping[str, Any], body: bytes, path: str, models: tuple[str, ...]) -> ServedRequest:
    if models and isinstance(data.get("model"), list):  # no vendor's API has it: its reader gets the first
        data = {**data, "model": models[0]}
    if len(body) >= LARGE_BYTES:
        return await asyncio.to_thread(_decode, api, data, body, path)
    return _decode(api, data, body, path)


def _decode(api: Api, data: Mapping[str, Any], body: bytes, path: str) -> ServedRequest:
    _check_depth(data, body)
    served = api.decode_request(data, path=path)
    request = served.request
    if not request.messages:
        raise RequestError("There are no messages", where="messages", hint="Send at least one.")
    shaped = request.response_format is not None or request.json_mode or bool(request.tools)
    if shaped and request.extra.get("n") not in (None, 1):
        raise RequestError("One answer is enforced per request", where="n", hint="Leave `n` out, or ask again.")
    return served


def _adopt(served: ServedRequest, mode: AdoptionMode, limits: ServerSettings) -> tuple[ServedRequest, Adopted | None]:
    """The request with the schema that a library wrote into its prompt, if it did and the schema is within limits."""
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
    """Refuse a request (413) whose schemas together are over the limits; nothing has been made of them yet."""
    wanted = request.response_format
    is_light = not request.tools and (wanted is None or wanted.json_schema.is_light)
    if is_light and min(limits.max_schema_bytes, limits.max_schema_nodes) >= LIGHT_BYTES:
        return
    schemas = {f"tools[{at}]": tool.parameters for at, tool in enumerate(request.tools)}
    if request.response_format is not None:
        schemas["response_format"] = request.response_format.json_schema.schema
    if schemas:
        check_size(schemas, limits.max_schema_bytes, limits.max_schema_nodes)


def _check_depth(data: Mapping[str, Any], body: bytes) -> None:
    """Refuse what can be read but, being nested so deeply, not be written again."""
    if body.count(b"{") + body.count(b"[") <= _DEEPEST:
        return
    wrapped: Any = data
    for _ in range(_WRITABLE - _DEEPEST):
        wrapped = [wrapped]
    try:
        orjson.dumps(wrapped)
    except TypeError:
        raise RequestError(f"The request is nested more than {_DEEPEST} levels deep") from None


_MOST_MODELS = 8
_KEY = b'"model"'
_ESCAPED = b"\\u006"
"""How every letter of `model` begins when it is written as an escape (`\\u006d` is m); no encoder writes letters so."""

_CHOOSES_A_MODEL: Final[Mapping[str, str]] = {
    # OpenRouter: https://openrouter.ai/docs/features/model-routing, /provider-routing, /presets, /plugins
    "models": "OpenRouter's fallback models",
    "route": "OpenRouter's routing over `models`",
    "provider": "OpenRouter's choice of who serves the model, and in which quantization",
    "preset": "OpenRouter's stored settings, which name models",
    "plugins": "OpenRouter's plugins, of which the auto-router chooses a model",
    # LiteLLM's proxy: https://docs.litellm.ai/docs/proxy/reliability, /proxy/clientside_auth, /proxy/prompt_management
    "fallbacks": "LiteLLM's fallback models",
    "contextwindowfallbacks": "LiteLLM's fallback models",
    "contentpolicyfallbacks": "LiteLLM's fallback models",
    "modellist": "LiteLLM's own routing table",
    "userconfig": "LiteLLM's own routing table",
    "deploymentid": "LiteLLM's name of an Azure deployment, which replaces the model's",
    "promptid": "LiteLLM's stored prompt, which names a model",
    "customllmprovider": "LiteLLM's choice of another vendor",
    "apibase": "LiteLLM's address of another vendor",
    "baseurl": "LiteLLM's address of another vendor",
    # Names of `model` in other APIs, which servers that speak several of them read as well.
    "engine": "the name of a model in OpenAI's first API",
    "deployment": "the name of a model on Azure",
    "modelid": "the name of a model in the APIs of watsonx and Bedrock",
    "modelname": "the name of a model in other APIs",
    # Other gateways spell their fallback lists so.
    "modelfallbacks": "a gateway's fallback models",
    "fallbackmodels": "a gateway's fallback models",
    "provideroptions": "the fallback models of Vercel's AI Gateway (`providerOptions.gateway.models`)",
    # OpenAI's Responses API: a stored prompt is saved together with a model.
    "prompt": "OpenAI's stored prompt, which names a model",
    # Groq: the models that its compound systems are made of.
    "compoundcustom": "the models inside Groq's compound systems",
    # Vertex AI, in generationConfig: `routingConfig.manualRoutingMode.modelName`.
    "routingconfig": "Vertex AI's model router",
    "modelselectionconfig": "Vertex AI's model router",
    # Servers of one's own that load adapters by request: text-generation-inference and LoRAX, SGLang, llama.cpp.
    "adapterid": "another adapter of the model",
    "adaptersource": "another adapter of the model",
    "lorapath": "another adapter of the model",
    "lora": "another adapter of the model",
}
"""Fields of a request by which a vendor chooses another model than `model` says, and what they are there.

In lower case and without `_` and `-`: servers written in Go read a field in any case.
"""
_HOLDS_FIELDS = frozenset({"extrabody", "generationconfig"})
"""Objects whose fields count as if they stood outside: gateways unpack the first, Gemini reads the second."""


def requested_models(api: str, data: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """The models that a call names, as its caller wrote them, each name checked; several are a list to fall back on.

    Empty where `model` is none of that, which the API's own reader has the words for.

    >>> requested_models("openai-chat", {"model": ["fast", "local"]}, "/v1/chat/completions")
    ('fast', 'local')
    """
    if api == "gemini":
        return (check_name(named_in_path(path), "the path"),)
    model = data.get("model")
    if isinstance(model, str):
        return (check_name(model),)
    if not isinstance(model, list) or not all(isinstance(each, str) for each in model):
        return ()
    if len(model) > _MOST_MODELS:
        raise RequestError(f"More than {_MOST_MODELS} models are listed", where="model", hint="List fewer.")
    return tuple(dict.fromkeys([check_name(name, f"model[{at}]") for at, name in enumerate(model)]))


def is_named_plainly(body: bytes) -> bool:
    """Whether `"model"`, in these very letters, stands once in a body: if it has that field, this is it.

    >>> is_named_plainly(b'{"model": "a"}'), is_named_plainly(b'{"model": "a", "metadata": {"model": "b"}}')
    (True, False)
    """
    return body.count(_KEY) == 1 and _ESCAPED not in body


def check_named_once(body: bytes) -> None:
    """Raise when a body has the field `model` twice: its readers do not agree on which of them counts."""
    if is_named_plainly(body):
        return
    try:
        # Numbers stay text: nobody looks at them, and those of many digits take long to read.
        fields = json.loads(body, object_pairs_hook=list, parse_int=str, parse_float=str)
    except RecursionError:
        raise RequestError("The request is nested too deeply", hint="Name the model once, in plain letters.") from None
    if sum(name == "model" for name, _ in fields) > 1:
        raise RequestError("The field `model` stands there twice", where="model", hint="Name the model once.")


def check_fields(data: Mapping[str, Any], api: str) -> None:
    """Raise `NotAllowed` for a field by which the vendor would choose another model; for keys with model limits.

    >>> check_fields({"model": "a", "messages": []}, "openai-chat")
    """
    allowed = None if api == "gemini" else "model"  # Gemini's is in the path, and one in the body could be another
    held: list[tuple[str, Mapping[str, Any], str | None]] = [("", data, allowed)]
    while held:
        where, fields, allowed = held.pop()
        for name, value in fields.items():
            if value is None or name == allowed:
                continue
            plain = name.casefold().replace("_", "").replace("-", "")
            if plain == "model":
                raise _not_allowed(where + name, "a second name of a model")
            if plain in _CHOOSES_A_MODEL:
                raise _not_allowed(where + name, _CHOOSES_A_MODEL[plain])
            if plain in _HOLDS_FIELDS and isinstance(value, Mapping):
                held.append((f"{where}{name}.", value, None))
            elif plain == "tools" and isinstance(value, list):
                # Tools that the vendor runs may ask a model of their own: Anthropic's advisor, OpenAI's images.
                for at, tool in enumerate(value):
                    for field, chosen in tool.items() if isinstance(tool, Mapping) else ():
                        if chosen is not None and field.casefold() == "model":
                            place = f"{where}{name}[{at}].{field}"
                            raise _not_allowed(place, "the model of a tool that the vendor runs")


def _not_allowed(field: str, why: str) -> NotAllowed:
    return NotAllowed(
        f"This API key may use certain models only, and may not send {shown(field)}: it is {why}",
        hint="Leave the field out, or list several models as `model`.",
    )
