"""How the file and the environment become settings, every mistake with its line or variable."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel, to_snake

from slipform.errors import ConfigError

Path: TypeAlias = tuple[str | int, ...]
PREFIX: Final = "SLIPFORM_"
_BENCHES = ("LITELLM", "NODE_PEERS", "PEERS", "PORTKEY", "SOAK_SECONDS", "STRUCTFORMATTER")
NO_SETTINGS: Final = frozenset(f"{PREFIX}{name}" for name in ("CONFIG", "CACHE", "PURE", "QUICK", *_BENCHES))
"""Variables of slipform's that are no settings: of its build and its tests too; the benchmarks' name other software."""
_REFERENCE = re.compile(r"\$(\$)?\{(\w+)\}")


def settings_in(environment: Mapping[str, str]) -> Iterator[tuple[str, Path, str]]:
    """The variables that stand for settings: name, path and text. `__` goes one level down.

    >>> list(settings_in({"SLIPFORM_SERVER__PORT": "9000", "SLIPFORM_CONFIG": "x", "HOME": "/"}))
    [('SLIPFORM_SERVER__PORT', ('server', 'port'), '9000')]
    """
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in NO_SETTINGS:
            yield name, tuple(name.removeprefix(PREFIX).lower().split("__")), environment[name]


def read_value(model: type[BaseModel], path: Path, text: str, where: str) -> Any:
    """What a text stands for as the value of a setting: itself where text is wanted, else YAML.

    >>> from slipform.config import Settings
    >>> read_value(Settings, ("server", "port"), "9000", "here")
    9000
    >>> read_value(Settings, ("redis", "prefix"), "a:", "here")
    'a:'
    """
    choices = _choices(_annotation(model, path))
    # A model may also have a list of names; a text that looks like one is one.
    if str in choices and not (text.lstrip().startswith("[") and any(get_origin(each) is list for each in choices)):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        said = getattr(error, "problem", None) or "it cannot be read"
        raise ConfigError(f"The value is not YAML: {said}", where=where) from error


def put(data: dict[str, Any], path: Path, value: Any, where: str) -> None:
    """Set one setting over what the file says, in either spelling of its name."""
    holder = data
    for step in path[:-1]:
        name = _spelled(holder, str(step))
        inner = holder.get(name)
        if inner is None:
            inner = holder[name] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"`{step}` is no group of settings in the file", where=where)
        holder = inner
    holder[_spelled(holder, str(path[-1]))] = value


def _spelled(holder: Mapping[str, Any], name: str) -> str:
    return next((each for each in (name, to_camel(name)) if each in holder), name)


def filled(data: Any, model: type[BaseModel], environment: Mapping[str, str], lines: Mapping[Path, str]) -> Any:
    """The file's data with every `${NAME}` in a text replaced; `$${` stands for `${` itself.

    >>> from slipform.config import Settings
    >>> filled({"server": {"port": "${PORT}"}}, Settings, {"PORT": "81"}, {})
    {'server': {'port': 81}}
    """
    return _filled(data, (), model, environment, lines)


def _filled(
    data: Any, path: Path, model: type[BaseModel], environment: Mapping[str, str], lines: Mapping[Path, str]
) -> Any:
    if isinstance(data, dict):
        return {key: _filled(value, (*path, key), model, environment, lines) for key, value in data.items()}
    if isinstance(data, list):
        return [_filled(value, (*path, at), model, environment, lines) for at, value in enumerate(data)]
    if not isinstance(data, str) or "${" not in data:
        return data
    where = lines.get(path, "the config")

    def replaced(found: re.Match[str]) -> str:
        if found[1]:
            return found[0][1:]
        if found[2] not in environment:
            raise ConfigError(
                f"The environment variable {found[2]} is not set",
                where=where,
                hint=f"Set it, or write `$${{{found[2]}}}` if the text itself is meant.",
            )
        return environment[found[2]]

    text = _REFERENCE.sub(replaced, data)
    whole = _REFERENCE.fullmatch(data)
    return read_value(model, path, text, where) if whole and not whole[1] else text


def _annotation(model: type[BaseModel], path: Path) -> Any:
    """The type of the setting at a path; `Any` where there is none, which validation will say."""
    kind: Any = model
    for step in path:
        block = next((each for each in _choices(kind) if isinstance(each, type) and issubclass(each, BaseModel)), None)
        if block is not None:
            field = block.model_fields.get(to_snake(str(step)))
            kind = field.annotation if field is not None else Any
            continue
        kind = next((get_args(each)[-1] for each in _choices(kind) if get_origin(each) in (dict, list)), Any)
    return kind


def _choices(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _explained(error: ValidationError, places: Mapping[tuple[Any, ...], str], name: str) -> ConfigError:
    order = list(places.values())
    mistakes = []
    for found in error.errors(include_url=False):
        path = found["loc"]
        known = (path[:size] for size in range(len(path), -1, -1))
        place = next((places[each] for each in known if each in places), f"{name}:1")
        said = "there is no such setting" if found["type"] == "extra_forbidden" else found["msg"]
        at = order.index(place) if place in order else -1
        mistakes.append((at, place, f"{place}: `{_dotted(path) or 'the file'}`: {said}"))
    mistakes.sort()
    listed = [text for _, _, text in mistakes]
    plural = "a mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
    details: dict[str, Any] = {"file": name, "mistakes": listed}
    line = mistakes[0][1].removeprefix(f"{name}:")
    if line.isdigit():
        details["line"] = int(line)
    return ConfigError(
        f"The config has {plural}: {'; '.join(listed)}",
        hint="See docs/reference.md for all settings.",
        details=details,
    )


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(str(step) for step in path)


def _lines(node: yaml.Node | None, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Where each part of the file stands, by its path."""
    if node is None:
        return
    if path == ():
        yield path, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield (*path, key.value), key.start_mark.line + 1
            yield from _lines(value, (*path, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for at, value in enumerate(node.value):
            yield (*path, at), value.start_mark.line + 1
            yield from _lines(value, (*path, at))


def _repeated(node: yaml.Node | None, path: tuple[Any, ...]) -> tuple[tuple[Any, ...], int] | None:
    """The first key that a mapping sets twice, which YAML readers let pass in silence."""
    if not isinstance(node, yaml.MappingNode):
        return None
    seen: set[str] = set()
    for key, value in node.value:
        if key.value in seen:
            return (*path, key.value), key.start_mark.line + 1
        seen.add(key.value)
        if twice := _repeated(value, (*path, key.value)):
            return twice
    return None
