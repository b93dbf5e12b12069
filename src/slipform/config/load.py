"""Merge the settings file with the environment, and locate every mistake by its line or variable."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel, to_snake

from slipform.errors import ConfigError
from slipform.yaml_reader import YamlError, read_yaml

SettingPath: TypeAlias = tuple[str | int, ...]
M = TypeVar("M", bound=BaseModel)
PREFIX: Final = "SLIPFORM_"
_BENCHES = ("LITELLM", "NODE_PEERS", "PEERS", "PORTKEY", "SOAK_SECONDS", "STRUCTFORMATTER")
NO_SETTINGS: Final = frozenset(f"{PREFIX}{name}" for name in ("CONFIG", "CACHE", "PURE", "THOROUGH", *_BENCHES))
"""Variables of slipform's build, tests and benchmarks, which are not settings."""
_REFERENCE = re.compile(r"\$(\$)?\{(\w+)(?::-([^{}]*))?\}")


def read_model(model: type[M], text: str, name: str, environment: Mapping[str, str]) -> tuple[M, dict[str, str]]:
    """Return the settings of a YAML text and of environment variables, and the lines of those in the text.

    Raises `ConfigError` with the file `name` and the line, or the variable, of every mistake.
    """
    try:
        data, node = read_yaml(text)
    except YamlError as error:
        raise ConfigError(f"The config is not YAML: {error}", where=f"{name}:{error.line}") from error
    locations = {path: f"{name}:{line}" for path, line in node_lines(node, ())}
    if duplicate := _find_duplicate(node, ()):
        path, line = duplicate
        raise ConfigError(f"`{_dotted_name(path)}` is set twice", where=f"{name}:{line}", hint="Keep one of them.")
    data = _expand_variables({} if data is None else data, (), model, environment, locations)
    lines = {_dotted_name(tuple(to_snake(str(step)) for step in path)): at for path, at in locations.items() if path}
    if isinstance(data, dict):
        for variable, path, value in _settings_variables(environment):
            _set_value(data, path, _read_value(model, path, value, variable), variable)
            locations[path] = variable
            for size in range(1, len(path)):
                locations.setdefault(path[:size], variable)
    try:
        return model.model_validate(data), lines
    except ValidationError as error:
        raise _explain_errors(error, locations, name, model) from None


def _settings_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, SettingPath, str]]:
    """Yield the variables that are settings: name, path and text. `__` separates levels.

    >>> list(_settings_variables({"SLIPFORM_SERVER__PORT": "9000", "SLIPFORM_CONFIG": "x", "HOME": "/"}))
    [('SLIPFORM_SERVER__PORT', ('server', 'port'), '9000')]
    """
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in NO_SETTINGS:
            yield name, tuple(name.removeprefix(PREFIX).lower().split("__")), environment[name]


def _read_value(model: type[BaseModel], path: SettingPath, text: str, where: str) -> Any:
    """Return the value of a setting from text: the text itself for a string setting, else parsed as YAML.

    >>> from slipform.config import Settings
    >>> _read_value(Settings, ("server", "port"), "9000", "here")
    9000
    >>> _read_value(Settings, ("redis", "prefix"), "a:", "here")
    'a:'
    """
    choices = _choices(_annotation(model, path))
    # `default_model` may be a string or a list: text that looks like a list is one.
    if str in choices and not (text.lstrip().startswith("[") and any(get_origin(each) is list for each in choices)):
        return text
    try:
        return read_yaml(text).value
    except YamlError as error:
        raise ConfigError(f"The value is not YAML: {error}", where=where) from error


def _set_value(data: dict[str, Any], path: SettingPath, value: Any, where: str) -> None:
    """Override one setting of the file, under the snake_case or camelCase name it has there."""
    group = data
    for step in path[:-1]:
        name = _name_in(group, str(step))
        inner = group.get(name)
        if inner is None:
            inner = group[name] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"`{step}` is not a group of settings in the file", where=where)
        group = inner
    group[_name_in(group, str(path[-1]))] = value


def _name_in(group: Mapping[str, Any], name: str) -> str:
    return next((each for each in (name, to_camel(name)) if each in group), name)


def _expand_variables(
    data: Any,
    path: SettingPath,
    model: type[BaseModel],
    environment: Mapping[str, str],
    lines: Mapping[SettingPath, str],
) -> Any:
    """Return the file's data with every `${NAME}` in a string replaced, `${NAME:-text}` also where NAME is not set.

    `$${` is a literal `${`.

    >>> from slipform.config import Settings
    >>> _expand_variables({"server": {"port": "${PORT}"}}, (), Settings, {"PORT": "81"}, {})
    {'server': {'port': 81}}
    """
    if isinstance(data, dict):
        return {key: _expand_variables(value, (*path, key), model, environment, lines) for key, value in data.items()}
    if isinstance(data, list):
        items = enumerate(data)
        return [_expand_variables(value, (*path, index), model, environment, lines) for index, value in items]
    if not isinstance(data, str) or "${" not in data:
        return data
    where = lines.get(path, "the config")

    def replacement(match: re.Match[str]) -> str:
        if match[1]:
            return match[0][1:]
        if match[2] not in environment and match[3] is not None:
            return match[3]
        if match[2] not in environment:
            raise ConfigError(
                f"The environment variable {match[2]} is not set",
                where=where,
                hint=f"Set it, write `${{{match[2]}:-default}}`, or `$${{{match[2]}}}` if the text itself is meant.",
            )
        return environment[match[2]]

    text = _REFERENCE.sub(replacement, data)
    reference = _REFERENCE.fullmatch(data)
    if reference and not reference[1]:
        return _read_value(model, path, text, where)
    return text


def _annotation(model: type[BaseModel], path: SettingPath) -> Any:
    """Return the type of the setting at a path; `Any` for an unknown one, which validation will report."""
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
    if get_origin(kind) in (Union, types.UnionType):
        return get_args(kind)
    return (kind,)


def _unknown_setting(model: type[BaseModel], path: SettingPath) -> str:
    kind = _annotation(model, path[:-1])
    blocks = [each for each in _choices(kind) if isinstance(each, type) and issubclass(each, BaseModel)]
    names = [name for block in blocks for name in block.model_fields]
    near = difflib.get_close_matches(to_snake(str(path[-1])), names, n=1)
    return f"unknown setting; did you mean `{near[0]}`?" if near else "unknown setting"


def _explain_errors(
    error: ValidationError, locations: Mapping[tuple[Any, ...], str], name: str, model: type[BaseModel]
) -> ConfigError:
    """Return the error that names every mistake with its line, in the order of the file."""
    order = list(locations.values())
    mistakes = []
    for fault in error.errors(include_url=False):
        path = fault["loc"]
        prefixes = (path[:size] for size in range(len(path), -1, -1))
        location = next((locations[each] for each in prefixes if each in locations), f"{name}:1")
        reason = _unknown_setting(model, path) if fault["type"] == "extra_forbidden" else fault["msg"]
        position = order.index(location) if location in order else -1
        mistakes.append((position, location, f"{location}: `{_dotted_name(path) or 'the file'}`: {reason}"))
    mistakes.sort()
    texts = [text for _, _, text in mistakes]
    plural = "a mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
    details: dict[str, Any] = {"file": name, "mistakes": texts}
    line = mistakes[0][1].removeprefix(f"{name}:")
    if line.isdigit():
        details["line"] = int(line)
    return ConfigError(
        f"The config has {plural}: {'; '.join(texts)}",
        hint="See docs/reference.md for all settings.",
        details=details,
    )


def _dotted_name(path: tuple[Any, ...]) -> str:
    return ".".join(str(step) for step in path)


def node_lines(node: yaml.Node | None, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield the line of each part of the file, by its path."""
    if node is None:
        return
    if path == ():
        yield path, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield (*path, key.value), key.start_mark.line + 1
            yield from node_lines(value, (*path, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            yield (*path, position), value.start_mark.line + 1
            yield from node_lines(value, (*path, position))


def _find_duplicate(node: yaml.Node | None, path: tuple[Any, ...]) -> tuple[tuple[Any, ...], int] | None:
    """Return the first key that a mapping sets twice, which YAML readers accept silently."""
    if not isinstance(node, yaml.MappingNode):
        return None
    keys: set[str] = set()
    for key, value in node.value:
        if key.value in keys:
            return (*path, key.value), key.start_mark.line + 1
        keys.add(key.value)
        if duplicate := _find_duplicate(value, (*path, key.value)):
            return duplicate
    return None
