"""`wrap`: an OpenAI or Anthropic client that somebody already has, with its answers held to their schemas."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import orjson

from slipform.codecs.answer import lifted
from slipform.codecs.serving import ServedRequest
from slipform.enforce import Budget, Outcome, Plan, Steps, enforce
from slipform.engine import Options, logged
from slipform.errors import ConfigError, RequestError
from slipform.ir import Lift, ModelRequest, ModelResponse
from slipform.schema import OutputStrategy, ResponseFormat, Schema
from slipform.wrappers_apis import APIS, Api
from slipform.wrappers_parse import PARSES, ParseCall, typed_call
from slipform.wrappers_stream import AsyncReplay, Replay, events

C = TypeVar("C")

_ENFORCED: Final = {
    "openai": (
        "chat.completions.create",
        "chat.completions.parse",
        "beta.chat.completions.parse",
        "responses.create",
        "responses.parse",
    ),
    "anthropic": ("messages.create", "messages.parse", "beta.messages.create", "beta.messages.parse"),
}
_UNENFORCED: Final = ("stream", "with_raw_response", "with_streaming_response", "tool_runner")
"""Other ways to the same answers."""
_DEFAULT: Final = Options(budget=Budget(attempts=3))
_CLONING: Final = ("copy", "with_options")


def wrap(client: C, *, options: Options | None = None) -> C:
    """The client, with the answers to calls that name a JSON Schema made to fit it.

    ::

        client = slipform.wrap(OpenAI())
        client.chat.completions.create(model=…, messages=…, response_format={"type": "json_schema", …})

    Takes `openai.OpenAI`, `anthropic.Anthropic` and their async twins, and leaves the one it is given alone. Calls stay
    what they are: `create` and `parse` of `chat.completions`, `responses` and `messages`, with a schema, a type or JSON
    mode, give the SDK's own response, its text repaired, patched or, within the budget (3 calls in all), asked for
    again; then its usage is that of all calls and `slipform_report` tells what was done. With `stream=True` the answer
    is judged first and then told as a stream. An answer that cannot be made to fit raises an `EnforcementError`; more
    than one choice (`n`) with a schema is refused. Tool calls are not judged. The `stream` helpers and the raw
    responses are passed on with a warning, calls without a schema without one.
    """
    kind = type(client)
    sdk = next((name for each in kind.__mro__ if (name := each.__module__.partition(".")[0]) in _ENFORCED), None)
    if sdk is None:
        raise ConfigError(
            f"A {kind.__module__}.{kind.__name__} cannot be wrapped",
            hint="Give an openai or anthropic client, or use slipform.Client.",
        )
    awaits = any(each.__name__.startswith("Async") for each in kind.__mro__)
    return cast("C", _Proxy(client, "", _ENFORCED[sdk], awaits, options or _DEFAULT))


class _Proxy:
    """Stands before a client or one of its resources; what is not enforced is passed through."""

    def __init__(self, target: Any, path: str, enforced: tuple[str, ...], awaits: bool, options: Options) -> None:
        vars(self).update(_target=target, _path=path, _enforced=enforced, _awaits=awaits, _options=options)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        path = f"{self._path}{name}"
        if path in self._enforced:
            return self._call(found, path.removeprefix("beta."), name)
        if any(each.startswith(f"{path}.") for each in self._enforced):
            return _Proxy(found, f"{path}.", self._enforced, self._awaits, self._options)
        if not self._path and name in _CLONING:
            return lambda *args, **kwargs: wrap(found(*args, **kwargs), options=self._options)
        if name in _UNENFORCED and any(each.startswith(self._path) for each in self._enforced):
            warnings.warn(
                f"slipform.wrap does not enforce `{path}`; use `create` or `parse`, slipform.Client, or the proxy.",
                stacklevel=2,
            )
        return found

    def _call(self, found: Callable[..., Any], path: str, name: str) -> Callable[..., Any]:
        create, parse = found, None
        if name == "parse":
            parse = PARSES[path]
            path = path.removesuffix("parse") + parse.create
            create = getattr(self._target, parse.create)
        api = APIS[path]
        make = _enforced_async if self._awaits else _enforced
        return make(_Call(create, found, path, api, parse, self._options))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._target, name, value)

    def __dir__(self) -> list[str]:
        return dir(self._target)

    def __repr__(self) -> str:
        return f"slipform.wrap({self._target!r})"

    # `isinstance` sees the SDK's own class.
    __class__ = property(lambda self: type(self._target))

    def __enter__(self) -> Any:
        self._target.__enter__()
        return self

    def __exit__(self, *caught: object) -> Any:
        return self._target.__exit__(*caught)

    async def __aenter__(self) -> Any:
        await self._target.__aenter__()
        return self

    async def __aexit__(self, *caught: object) -> Any:
        return await self._target.__aexit__(*caught)


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the SDK, and how its answers are enforced."""

    create: Callable[..., Any]
    own: Callable[..., Any]
    """What the SDK itself does; for calls that name no shape."""
    path: str
    api: Api
    parse: ParseCall | None
    options: Options


@dataclass(frozen=True, slots=True)
class _Task:
    """What one call wants: the arguments for `create`, and what its answer is held to."""

    given: dict[str, Any]
    request: ModelRequest
    schema: Schema[Any] | None = None
    lift: Lift | None = None
    streamed: bool = False


def _enforced(call: _Call) -> Callable[..., Any]:
    def enforced(*args: Any, **given: Any) -> Any:
        task = _wanted(call, args, given)
        if task is None:
            return call.own(*args, **given)
        steps = _steps(task, call.options)
        asked: ModelRequest | Outcome = next(steps)
        while True:
            response = call.create(**_again(call.api, task.given, cast("ModelRequest", asked)))
            asked = _send(steps, _read(call.api, response, task))
            if isinstance(asked, Outcome):
                return Replay(_told(call, task, asked)) if task.streamed else _given_back(call, response, asked)

    return enforced


def _enforced_async(call: _Call) -> Callable[..., Awaitable[Any]]:
    async def enforced(*args: Any, **given: Any) -> Any:
        task = _wanted(call, args, given)
        if task is None:
            return await call.own(*args, **given)
        steps = _steps(task, call.options)
        asked: ModelRequest | Outcome = next(steps)
        while True:
            response = await call.create(**_again(call.api, task.given, cast("ModelRequest", asked)))
            asked = _send(steps, _read(call.api, response, task))
            if isinstance(asked, Outcome):
                return AsyncReplay(_told(call, task, asked)) if task.streamed else _given_back(call, response, asked)

    return enforced


def _wanted(call: _Call, args: tuple[Any, ...], given: Mapping[str, Any]) -> _Task | None:
    """What a call asks for; None when it names no shape, which is then none of slipform's business."""
    if args:
        return None  # the SDKs take no positional arguments here, and say so themselves
    typed = typed_call(call.parse, given) if call.parse is not None else None
    if call.parse is not None and (typed is None or given.get("tools")):
        if given.get(call.parse.shape):
            warnings.warn("slipform.wrap enforces `parse` with a type and without tools only.", stacklevel=3)
        return None
    arguments = dict(given) if typed is None else typed.given
    request = call.api.wanted(arguments)
    if request is None or (request.response_format is None and not request.json_mode):
        return None
    if isinstance(given.get("n"), int) and given["n"] > 1:
        raise RequestError(
            "slipform.wrap holds one answer to its schema, and this call asks for more",
            where="n",
            hint="Call once for each answer.",
        )
    streamed = arguments.pop("stream", None) is True
    if streamed:
        arguments.pop("stream_options", None)
    if typed is None:
        return _Task(arguments, request, streamed=streamed)
    wanted = ResponseFormat.strict(typed.schema.spec)
    return _Task(arguments, request.replace(response_format=wanted), typed.schema, typed.lift)


def _read(api: Api, response: Any, task: _Task) -> ModelResponse:
    read = api.read(response)
    return read if task.lift is None else lifted(read, task.lift)


def _told(call: _Call, task: _Task, outcome: Outcome) -> Iterator[Any]:
    served = ServedRequest(task.request, stream=True, options={"include_usage": True})
    return events(call.path, call.api.serving, served, outcome.answer)


def _given_back(call: _Call, response: Any, outcome: Outcome) -> Any:
    mended = _mended(call.api, response, outcome)
    if call.parse is None or outcome.response.tool_calls:
        return mended
    parsed = call.parse.parsed(mended, outcome.typed)
    if mended is not response:
        parsed.slipform_report = outcome.report
    return parsed


def _steps(task: _Task, options: Options) -> Steps:
    wanted = task.request.response_format
    schema = task.schema
    if schema is None:
        schema = Schema.of(wanted.json_schema) if wanted is not None else Schema("object", {"type": "object"})
    plan = Plan(
        schema=schema,
        strategy=OutputStrategy.NATIVE,
        budget=options.budget,
        reask_scope="full",
        switches=options.switches,
        repair=options.repair,
        validators=options.validators,
        keep_text=options.keep_text,
    )
    return logged(enforce(task.request, plan), task.request, plan)


def _again(api: Api, given: Mapping[str, Any], asked: ModelRequest) -> dict[str, Any]:
    """The caller's own call, with what the loop has to say at the end of it."""
    said = [{"role": message.role, "content": message.text} for message in asked.messages]
    return api.continued(given, said) if said else dict(given)


def _send(steps: Steps, response: ModelResponse) -> ModelRequest | Outcome:
    try:
        return steps.send(response)
    except StopIteration as done:
        outcome: Outcome = done.value
        return outcome


def _mended(api: Api, response: Any, outcome: Outcome) -> Any:
    """The SDK's response: as it is when it was valid at once, else a copy that holds the valid answer."""
    if outcome.response.tool_calls or (len(outcome.report.attempts) == 1 and _says(api, response, outcome.value)):
        return response
    copy = response.model_copy(deep=True)
    api.write(copy, outcome.text)
    if copy.usage is not None and len(outcome.report.attempts) > 1:
        api.spend(copy.usage, outcome.report.usage)
    copy.slipform_report = outcome.report
    return copy


def _says(api: Api, response: Any, value: Any) -> bool:
    try:
        said = orjson.loads(api.read(response).text)
    except orjson.JSONDecodeError:
        return False
    return orjson.dumps(said) == orjson.dumps(value)
