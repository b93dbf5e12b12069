"""Options: one record, filled from the settings by declaration and overridden by path."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import pytest

from slipform.config import Settings
from slipform.enforce.options import Options, override
from slipform.engine.setup import options_of
from slipform.settings_block import Into

UNDECLARED = {"on_incomplete", "open_objects", "stream_mode", "adopt_schemas"}
"""Settings of the server or of lowering, which are not options of a call."""


def into_of(name: str) -> Into | None:
    metadata = type(Settings().enforcement).model_fields[name].metadata
    return next((each for each in metadata if isinstance(each, Into)), None)


def test_every_setting_of_enforcement_goes_into_a_field_of_the_options() -> None:
    for name in type(Settings().enforcement).model_fields:
        into = into_of(name)
        if into is None:
            assert name in UNDECLARED, name
            continue
        record, _, field = into.path.rpartition(".")
        owner = getattr(Options(), record) if record else Options()
        assert is_dataclass(owner)
        assert field in {each.name for each in fields(owner)}, name


def test_the_settings_reach_the_options() -> None:
    settings = Settings.model_validate({
        "enforcement": {
            "max_attempts": 7, "max_cost": 2.5, "formatter": "local", "strict_trailing": True, "repair": False,
            "response_format_max_schema_chars": 500, "patches": {"units": True, "coerce": False},
        },
        "prices": {"a/b": {"input": 1, "output": 2}},
        "server": {"debug_traces": True},
    })  # fmt: skip
    options = options_of(settings)
    assert (options.budget.attempts, options.budget.money, options.budget.calls) == (7, 2.5, 24)
    assert (options.formatter, options.repair, options.max_schema_chars) == ("local", False, 500)
    assert options.guard.strict_trailing
    assert (options.switches.units, options.switches.coerce, options.switches.unwrap) == (True, False, True)
    assert options.prices["a/b"].output == 2
    assert options.keep_text


def test_without_settings_the_options_are_the_defaults_but_for_the_attempts() -> None:
    assert options_of(Settings()) == override(Options(), {"budget.attempts": 3})


def test_overriding_with_nothing_gives_the_same_object() -> None:
    options = Options()
    assert override(options, {"repair": None, "budget.seconds": None}) is options


def test_a_path_that_leads_nowhere_is_an_error() -> None:
    with pytest.raises(TypeError):
        override(Options(), {"budget.minutes": 3})
