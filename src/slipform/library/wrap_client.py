"""`wrap`: an SDK client whose answers are enforced."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar, cast

import orjson

from slipform.codecs import ServedRequest
from slipform.codecs.answer import lifted
from slipform.enforce import Budget, Outcome, Plan
from slipform.engine.drive import AsyncModel, Model, run, run_async
from slipform.engine.planning import enforced_tools, is_enforced, requires_call, wanted_schema
from slipform.engine.setup import Options
from slipform.errors import ConfigError, RequestError
from slipform.ir import Lift, ModelRequest, ModelResponse
from slipform.library.wrap_apis import APIS, WrappedApi
from slipform.providers.base import as_chunks
from slipform.schema import OutputStrategy, ResponseFormat, Schema
from slipform.schema.lowering.lift_plan import PENDING
from slipform.schema.lowering.lowered import lower

_SHAPES: Final = ("response_format", "text_format", "output_format")


@dataclass(frozen=True, slots=True)
class Typed:
    """A Python type as one call sends it: what is posted, and the way back."""

    schema: Schema[Any]
    body: dict[str, Any]
    lift: Lift | None


def typed_call(api: WrappedApi, body: Mapping[str, Any], parser: Callable[[Any], Any]) -> Typed | None:
    """The call with its type as slipform writes it for the vendor; None when no type is known.

    The SDK's own schema of the type is in the body already, but it leaves out what the vendor does not know and asks
    for what is optional: answers are held to the type itself.
    """
    shape = _type_of(parser)
    if shape is None:
        return None
    schema: Schema[Any] = Schema.of(shape)
    lowered = lower(schema.document, api.dialect, open_objects="closed")
    lift = None if lowered.identity else Lift(lowered.schema, lowered.lift, lowered.lift_stream, PENDING)
    return Typed(schema, {**body, **api.spelled(body, schema.name, lowered.schema)}, lift)


def _type_of(parser: Callable[[Any], Any]) -> type[Any] | None:
    """The type that the SDK's parser of answers makes; the SDKs tell it to nobody else."""
    if not inspect.isfunction(parser):
        return None
    known = inspect.getclosurevars(parser).nonlocals
    return next((known[name] for name in _SHAPES if isinstance(known.get(name), type)), None)


def events(api: WrappedApi, served: ServedRequest, answer: ModelResponse) -> Iterator[Any]:
    """The events that the SDK would have read from the vendor."""
    encoder = api.serving.encode_stream(served)
    told = b"".join((*map(encoder.feed, as_chunks(answer)), encoder.finish()))
    for line in told.split(b"\n"):
        if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
            yield api.event(orjson.loads(data))


class _Response:
    """Stands for the HTTP response of a stream, which is over and may have been several."""

    status_code = 200
    headers: Mapping[str, str] = MappingProxyType({})

    def close(self) -> None:
        """Nothing is held open."""

    async def aclose(self) -> None:
        """Nothing is held open."""


class Replay:
    """Stands for the SDKs' `Stream`: iterate over it, or open it with `with`."""

    def __init__(self, told: Iterator[Any]) -> None:
        self._told = told
        self.response = _Response()

    def __iter__(self) -> Iterator[Any]:
        return self._told

    def __next__(self) -> Any:
        return next(self._told)

    def close(self) -> None:
        """Nothing is held open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncReplay:
    """Stands for the SDKs' `AsyncStream`."""

    def __init__(self, told: Iterator[Any]) -> None:
        self._told = told
        self.response = _Response()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        for event in self._told:
            return event
        raise StopAsyncIteration

    async def close(self) -> None:
        """Nothing is held open."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


C = TypeVar("C")
_SDKS: Final = ("openai", "anthropic")
_DEFAULT: Final = Options(budget=Budget(attempts=3))
_RAW: Final = "x-stainless-raw-response"
"""The header by which the SDKs tell themselves that the HTTP response is wanted, and not what it says."""


def wrap(client: C, *, options: Options | None = None) -> C:
    """The client, with the answers to calls that name a JSON Schema or tools made to fit them.

    ::

        client = slipform.wrap(OpenAI())
        client.chat.completions.create(model=…, messages=…, response_format={"type": "json_schema", …})

    Takes `openai.OpenAI`, `anthropic.Anthropic` and their async twins, and leaves the one it is given alone. Calls stay
    what they are: `create`, `parse` and `stream` of `chat.completions`, `responses` and `messages`, with a schema, a
    type, tools or JSON mode, give the SDK's own response, its text and its tool calls repaired, patched or, within the
    budget (3 calls in all), asked for again; then its usage is that of all calls and `slipform_report` tells what was
    done. A streamed answer is judged first and then told as a stream. An answer that cannot be made to fit raises an
    `EnforcementError`; more than one choice (`n`) with a schema is refused. Raw responses are passed on with a warning,
    calls that name no shape without one.
    """
    kind = type(client)
    if not any(each.__module__.partition(".")[0] in _SDKS for each in kind.__mro__):
        raise ConfigError(
            f"A {kind.__module__}.{kind.__name__} cannot be wrapped",
            hint="Give an openai or anthropic client, or use slipform.Client.",
        )
    wrapped = cast("Any", client).copy()
    chosen = options or _DEFAULT
    awaits = any(each.__name__.startswith("Async") for each in kind.__mro__)
    # All that the SDKs' calls and helpers send goes through the client's `post`.
    wrapped.post = (_enforced_async if awaits else _enforced)(wrapped.post, chosen)
    copy = wrapped.copy
    wrapped.copy = wrapped.with_options = lambda **changes: wrap(copy(**changes), options=chosen)
    return cast("C", wrapped)


@dataclass(frozen=True, slots=True)
class _Task:
    """What one call wants: what is posted, and what its answer is held to."""

    api: WrappedApi
    body: Mapping[str, Any]
    given: Mapping[str, Any]
    """What else the SDK gave to `post`."""
    request: ModelRequest
    schema: Schema[Any] | None = None
    lift: Lift | None = None
    parser: Callable[[Any], Any] | None = None
    """What the SDK does with a whole answer."""
    streamed: bool = False

    def again(self, asked: ModelRequest) -> dict[str, Any]:
        """What is posted next: the caller's own call, with what the loop has to say at the end of it."""
        return {**self.given, "body": self.api.continued(self.body, asked.messages)}

    def count(self, asked: ModelRequest) -> None:
        """One more call goes out."""
        if asked.calls is not None:
            asked.calls.add(asked.model)

    def read(self, response: Any) -> ModelResponse:
        """An answer in the caller's shape."""
        read = self.api.read(response)
        return read if self.lift is None else lifted(read, self.lift)

    def told(self, outcome: Outcome) -> Iterator[Any]:
        """The answer as a stream's events."""
        served = ServedRequest(self.request, stream=True, options={"include_usage": True})
        return events(self.api, served, outcome.answer)

    def given_back(self, response: Any, outcome: Outcome) -> Any:
        """The SDK's response: as it is when it was valid at once, else a copy that holds the valid answer."""
        mended = response if _is_untouched(self, response, outcome) else self.api.mended(response, outcome)
        parsed = mended if self.parser is None else self.parser(mended)
        if mended is not response:
            parsed.slipform_report = outcome.report
        return parsed


def _enforced(post: Callable[..., Any], options: Options) -> Callable[..., Any]:
    def enforced(path: str, **given: Any) -> Any:
        task = _wanted(path, given, options)
        if task is None:
            return post(path, **given)
        answers: list[Any] = []

        def complete(asked: ModelRequest) -> ModelResponse:
            task.count(asked)
            answers.append(post(path, **task.again(asked)))
            return task.read(answers[-1])

        outcome = run(task.request, _plan(task, options), Model(complete))
        return Replay(task.told(outcome)) if task.streamed else task.given_back(answers[-1], outcome)

    return enforced


def _enforced_async(post: Callable[..., Awaitable[Any]], options: Options) -> Callable[..., Awaitable[Any]]:
    async def enforced(path: str, **given: Any) -> Any:
        task = _wanted(path, given, options)
        if task is None:
            return await post(path, **given)
        answers: list[Any] = []

        async def complete(asked: ModelRequest) -> ModelResponse:
            task.count(asked)
            answers.append(await post(path, **task.again(asked)))
            return task.read(answers[-1])

        outcome = await run_async(task.request, _plan(task, options), AsyncModel(complete))
        return AsyncReplay(task.told(outcome)) if task.streamed else task.given_back(answers[-1], outcome)

    return enforced


def _wanted(path: str, given: Mapping[str, Any], options: Options) -> _Task | None:
    """What a call asks for; None when it names no shape, which is then none of slipform's business."""
    api = APIS.get(path.partition("?")[0])
    body = given.get("body")
    if api is None or not isinstance(body, Mapping):
        return None
    sent = given.get("options") or {}
    request = api.wanted({**body, **(sent.get("extra_json") or {})})
    if request is None or not is_enforced(request, tools=options.tools == "enforce"):
        return None
    if any(name.lower() == _RAW for name in sent.get("headers") or ()):
        warnings.warn("slipform.wrap does not enforce raw responses; use the plain call, or the proxy.", stacklevel=5)
        return None
    if isinstance(body.get("n"), int) and body["n"] > 1:
        raise RequestError(
            "slipform.wrap holds one answer to its schema, and this call asks for more",
            where="n",
            hint="Call once for each answer.",
        )
    parser = sent.get("post_parser")
    plain = {name: value for name, value in sent.items() if name != "post_parser"}
    rest = {name: value for name, value in given.items() if name not in {"body", "options", "stream", "stream_cls"}}
    body = {name: value for name, value in body.items() if name not in {"stream", "stream_options"}}
    task = _Task(api, body, {**rest, "options": plain}, request, parser=parser, streamed=given.get("stream") is True)
    typed = None if parser is None else typed_call(api, body, parser)
    if typed is None:
        return task
    shaped = request.replace(response_format=ResponseFormat.strict(typed.schema.spec))
    return replace(task, body=typed.body, request=shaped, schema=typed.schema, lift=typed.lift)


def _plan(task: _Task, options: Options) -> Plan:
    """How the answer is enforced: the SDK sends the schema itself, and another model cannot be called through it."""
    request = task.request
    return Plan(
        schema=task.schema or wanted_schema(request),
        strategy=OutputStrategy.NATIVE,
        budget=options.budget,
        tools=enforced_tools(request, options),
        must_call=requires_call(request, options),
        reask_scope="full",
        switches=options.switches,
        repair=options.repair,
        validators=options.validators,
        on_failure=options.on_failure,
        guard=options.guard,
        backoff_seconds=options.backoff_seconds,
        keep_text=options.keep_text,
    )


def _is_untouched(task: _Task, response: Any, outcome: Outcome) -> bool:
    if len(outcome.report.attempts) > 1:
        return False
    said = task.api.read(response)
    if outcome.response.tool_calls or said.tool_calls:
        return [(call.id, call.arguments) for call in said.tool_calls] == [
            (call.id, call.arguments) for call in outcome.response.tool_calls
        ]
    if task.schema is None and task.request.response_format is None and not task.request.json_mode:
        return True
    try:
        return orjson.dumps(orjson.loads(said.text)) == orjson.dumps(outcome.value)
    except orjson.JSONDecodeError:
        return False
