"""Create, change and revoke keys for operators of the console, as `slipform keys` does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from slipform.addons.server.admission.budgets import PERIODS, KeyBudget
from slipform.addons.server.admission.key_file import Key, RemovedKey, revocation_of
from slipform.addons.server.admission.keys import (
    ON_BEHALF_OF,
    add_key,
    change_key,
    disable_key,
    expiry,
    remove_key,
)
from slipform.addons.server.admission.revocations import Revocation
from slipform.addons.server.admission.shared_state import shared_revision, tell_machines
from slipform.config import Settings
from slipform.errors import ConfigError, RequestError

_COUNTS: Final = ("requests_per_minute", "max_tokens", "max_concurrent")
_FIELDS: Final = frozenset({*_COUNTS, "models", "max_cost", "period", "expires"})
_LONGEST_NAME: Final = 100
_MOST_MODELS: Final = 200


def create_key(settings: Settings, operator: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Add a key and return it; its secret is in this answer only."""
    name = payload.get("name")
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME:
        raise RequestError(f"A key needs a name of at most {_LONGEST_NAME} characters", where="name")
    limits = _limits({key: value for key, value in payload.items() if key not in ("name", "operator")})
    ON_BEHALF_OF.set(operator)
    try:
        key, secret = add_key(
            _key_file(settings),
            name.strip(),
            models=limits.get("models"),
            requests_per_minute=limits.get("requests_per_minute"),
            expires=limits.get("expires") or "",
            operator=payload.get("operator") is True,
            budget=KeyBudget(
                limits.get("max_cost"),
                limits.get("max_tokens"),
                limits.get("period") or "",
                max_concurrent=limits.get("max_concurrent"),
            ),
        )
    except (ConfigError, ValueError) as error:
        raise _refused(error) from None
    return {"id": key.id, "name": key.name, "secret": secret}


def edit_key(settings: Settings, operator: str, key_id: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Change the limits of a key, or disable or enable it."""
    ON_BEHALF_OF.set(operator)
    try:
        if isinstance(payload.get("disabled"), bool):
            return {"id": _set_disabled(settings, key_id, disabled=payload["disabled"]).id}
        key = change_key(_key_file(settings), key_id, _limits(payload))
    except (ConfigError, ValueError) as error:
        raise _refused(error) from None
    return {"id": key.id}


def _set_disabled(settings: Settings, key_id: str, *, disabled: bool) -> Key:
    redis = settings.redis
    shared_revision_of = (lambda each: shared_revision(redis, each)) if redis is not None else None
    key = disable_key(_key_file(settings), key_id, disabled, after=shared_revision_of)
    if redis is not None:
        tell_machines(redis, key.id, revocation_of(key))
    return key


def revoke_key(settings: Settings, operator: str, key_id: str) -> dict[str, Any]:
    """Remove a key permanently."""
    ON_BEHALF_OF.set(operator)
    try:
        key = remove_key(_key_file(settings), key_id)
        if settings.redis is not None and not isinstance(key, RemovedKey):
            tell_machines(settings.redis, key.id, Revocation("removed", 0))
    except ConfigError as error:
        raise _refused(error) from None
    return {"id": key.id}


def _key_file(settings: Settings) -> Path:
    if not settings.server.keys_file:
        raise RequestError("This server has no key file", hint="Set `server.keys_file`, and add the first key there.")
    return Path(settings.server.keys_file)


def _refused(error: ConfigError | ValueError) -> RequestError:
    if isinstance(error, ConfigError):
        return RequestError(error.message, hint=error.hint)
    return RequestError(str(error))


def _limits(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits of a request as fields of `Key`; raises `RequestError` for an unknown or invalid limit."""
    if unknown := sorted(payload.keys() - _FIELDS):
        raise RequestError(f"Unknown limit {unknown[0][:64]!r}", hint=f"The limits are {', '.join(sorted(_FIELDS))}.")
    limits = dict(payload)
    for name in (*_COUNTS, "max_cost"):
        _check_number(name, limits.get(name))
    if limits.get("models") is not None:
        limits["models"] = _patterns(limits["models"])
    if limits.get("period") not in (None, *PERIODS):
        raise RequestError(f"The periods are {', '.join(each for each in PERIODS if each)}, or none", where="period")
    if "period" in limits:
        limits["period"] = limits["period"] or ""
    if "expires" in limits:
        limits["expires"] = _expiry_of(limits["expires"])
    return limits


def _expiry_of(text: Any) -> str:
    """Return when a key expires, in ISO 8601; empty for never."""
    try:
        return expiry(str(text)) if text else ""
    except ConfigError as error:
        raise _refused(error) from None


def _check_number(name: str, value: Any) -> None:
    """Raise unless a limit is None or a number above 0; all limits except costs are integers."""
    kinds = int | float if name == "max_cost" else int
    if value is not None and (not isinstance(value, kinds) or isinstance(value, bool) or value <= 0):
        raise RequestError("A limit is a number above 0, or null for none", where=name)


def _patterns(models: Any) -> tuple[str, ...] | None:
    """Return the models that a key may use; None, for an empty list, means all."""
    is_list = isinstance(models, list) and len(models) <= _MOST_MODELS
    if not is_list or not all(isinstance(each, str) and each for each in models):
        raise RequestError("A list of model names or patterns is expected", where="models")
    return tuple(models) or None


def budget_fields(budget: KeyBudget) -> dict[str, Any]:
    """Return the limits of a budget, as the console shows and changes them."""
    return {name: value for name, value in dataclasses.asdict(budget).items() if not name.startswith("soft")}
