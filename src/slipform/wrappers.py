"""`wrap`: an OpenAI or Anthropic client that somebody already has, with its answers held to their schemas."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar, cast

import orjson

from slipform.enforce import Budget, Outcome, Plan, Steps, enforce
from slipform.engine import Options, logged
from slipform.errors import ConfigError
from slipform.ir import ModelRequest, ModelResponse
from slipform.schema import OutputStrategy, Schema
from slipform.wrappers_apis import APIS, Api

C = TypeVar("C")

_ENFORCED: Final = {
    "openai": ("chat.completions.create", "responses.create"),
    "anthropic": ("messages.create", "beta.messages.create"),
}
_DEFAULT: Final = Options(budget=Budget(attempts=3))
_CLONING: Final = ("copy", "with_options")


def wrap(client: C, *, options: Options | None = None) -> C:
    """The client, with the answers to calls that name a JSON Schema made to fit it.

    ::

        client = slipform.wrap(OpenAI())
        client.chat.completions.create(model=…, messages=…, response_format={"type": "json_schema", …})

    Takes `openai.OpenAI`, `anthropic.Anthropic` and their async twins, and leaves the one it is given alone. Calls stay
    what they are: `chat.completions.create`, `responses.create` and `messages.create` with a schema (or JSON mode) give
    the SDK's own response, its text repaired, patched or, within the budget (3 calls in all), asked for again; then its
    usage is that of all calls and `slipform_report` tells what was done. An answer that cannot be made to fit raises an
    `EnforcementError`. The first choice is judged, tool calls are not, and nothing else is touched: calls without a
    schema, `parse`, the `stream` helpers. A call with both a schema and `stream=True` is passed on with a warning.
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
            api = APIS[path.removeprefix("beta.")]
            make = _enforced_async if self._awaits else _enforced
            return make(found, api, self._options)
        if any(each.startswith(f"{path}.") for each in self._enforced):
            return _Proxy(found, f"{path}.", self._enforced, self._awaits, self._options)
        if not self._path and name in _CLONING:
            return lambda *args, **kwargs: wrap(found(*args, **kwargs), options=self._options)
        return found

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


def _enforced(create: Callable[..., Any], api: Api, options: Options) -> Callable[..., Any]:
    def call(*args: Any, **given: Any) -> Any:
        request = _wanted(api, args, given)
        if request is None:
            return create(*args, **given)
        steps = _steps(request, options)
        asked: ModelRequest | Outcome = next(steps)
        while True:
            response = create(**_again(api, given, cast("ModelRequest", asked)))
            asked = _send(steps, api.read(response))
            if isinstance(asked, Outcome):
                return _mended(api, response, asked)

    return call


def _enforced_async(create: Callable[..., Awaitable[Any]], api: Api, options: Options) -> Callable[..., Awaitable[Any]]:
    async def call(*args: Any, **given: Any) -> Any:
        request = _wanted(api, args, given)
        if request is None:
            return await create(*args, **given)
        steps = _steps(request, options)
        asked: ModelRequest | Outcome = next(steps)
        while True:
            response = await create(**_again(api, given, cast("ModelRequest", asked)))
            asked = _send(steps, api.read(response))
            if isinstance(asked, Outcome):
                return _mended(api, response, asked)

    return call


def _wanted(api: Api, args: tuple[Any, ...], given: Mapping[str, Any]) -> ModelRequest | None:
    """The shape that a call asks for; None when it asks for none, or for one that is not enforced here."""
    if args:
        return None  # the SDKs take no positional arguments here, and say so themselves
    request = api.wanted(given)
    if request is None or (request.response_format is None and not request.json_mode):
        return None
    if given.get("stream") is True:
        warnings.warn(
            "slipform.wrap does not enforce streamed answers; use slipform.Client.stream, or the proxy.", stacklevel=4
        )
        return None
    return request


def _steps(request: ModelRequest, options: Options) -> Steps:
    wanted = request.response_format
    schema: Schema[Any] = Schema.of(wanted.json_schema) if wanted is not None else Schema("object", {"type": "object"})
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
    return logged(enforce(request, plan), request, plan)


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
