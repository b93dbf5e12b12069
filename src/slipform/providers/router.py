"""Resolve `provider/model` or an alias to a provider."""

from __future__ import annotations

import contextlib
import difflib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from slipform.errors import ConfigError, UnknownModelError
from slipform.ir.request import RequestDefaults
from slipform.providers.base import Provider, ReadsFiles

_NEAREST = 5


class ModelTarget(NamedTuple):
    """One of the models behind a name: its weight among several, and the defaults of its requests."""

    model: str
    weight: float | None = None
    defaults: tuple[RequestDefaults, ...] = ()


class Router:
    """Finds the provider of a model. The first `/` separates the provider's name from its own name for the model.

    A provider's bare name means the first model it lists. An alias may name several models, the next of which is used
    if one cannot answer: `candidates` returns all, `resolve` the first. The default is the one given, else the only
    provider.

    ::
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        aliases: Mapping[str, str | Sequence[str | ModelTarget]] | None = None,
        default: str | Sequence[str] | None = None,
        *,
        endpoint: str | None = None,
    ) -> None:
        """Resolve `aliases` and the `default` among the providers; names without a provider go to the `endpoint`."""
        self._providers = dict(providers)
        self._endpoint = None if endpoint is None else self._providers[endpoint]
        self._listed = {name: _targets(alias_target) for name, alias_target in (aliases or {}).items()}
        names = {name: [target.model for target in listed] for name, listed in self._listed.items()}
        self._chains = {name: _follow(name, names) for name in names}
        self._special = frozenset(name for name in names if self._is_special(name))
        """Aliases with weights or defaults, of their own or from an alias in their list."""
        self._aliases = {name: targets[0] for name, targets in self._chains.items()}
        self._check_names([default] if isinstance(default, str) else default or ())
        if default is None and len(self._providers) == 1:
            default = next(iter(self._providers))
        self._default_models = default
        self._default = default if isinstance(default, str) else next(iter(default or ()), None)

    @property
    def providers(self) -> Mapping[str, Provider]:
        """The providers by name."""
        return MappingProxyType(self._providers)

    @property
    def aliases(self) -> Mapping[str, str]:
        """The aliases, each with the first `provider/model` it resolves to."""
        return MappingProxyType(self._aliases)

    def resolve(self, model: str | None = None) -> tuple[Provider, str]:
        """Return the provider and its own name for the model; no name means the default model.

        Raises `UnknownModelError`, which lists the nearest names.
        """
        name = model or self._default
        if not name:
            raise UnknownModelError(
                "No model was named, and no default model is set", hint="Give one as `provider/model`."
            )
        full = self._aliases.get(name, name)
        prefix, slash, upstream = full.partition("/")
        provider = self._providers.get(prefix)
        if provider is None and self._endpoint is not None:
            return self._endpoint, full
        if provider is None:
            raise self._unknown(name, f"Unknown model {name!r}")
        if not slash and (models := provider.models()):
            return provider, models[0]
        if not upstream:
            raise self._unknown(name, f"{name!r} names a provider without a model")
        if not provider.serves(upstream):
            raise self._unknown(name, f"The provider {prefix!r} serves no model {upstream!r}")
        return provider, upstream

    def candidates(self, models: str | Sequence[str]) -> tuple[str, ...]:
        """Return the models to try in order, for a name or a list of names; raises for an unknown one."""
        if isinstance(models, str):
            if not models and not isinstance(self._default_models, str) and self._default_models:
                return self.candidates(self._default_models)
            chain = self._chains.get(models or self._default or "", ())
            return chain if len(chain) > 1 else (models,)
        for each in models:
            self.resolve(each)
        return tuple(dict.fromkeys(name for each in models for name in self.candidates(each)))

    def targets(self, models: str | Sequence[str]) -> tuple[ModelTarget, ...]:
        """Return the targets of a name or a list, in the order for this request, with the defaults of each."""
        if isinstance(models, str) and "/" in models and models not in self._chains:  # nearly every request
            return (ModelTarget(models),)
        names = (models or self._default or "",) if isinstance(models, str) else tuple(models)
        if self._special.isdisjoint(names):
            return tuple([ModelTarget(name) for name in self.candidates(models)])
        targets: dict[str, ModelTarget] = {}
        for name in names:
            self.resolve(name)
            spread = list(self._expand(name))
            if len({target.model for target in spread}) == 1:
                spread = [spread[0]._replace(model=name)]
            for target in spread:
                targets.setdefault(target.model, target)
        return tuple(targets.values())

    def has_defaults(self, model: str) -> bool:
        """Return whether the alias of a name sets defaults for its requests."""
        return model in self._special or (not model and self._default in self._special)

    def default_fields(self, models: Sequence[str]) -> list[list[tuple[str, list[Mapping[str, Any]]]]]:
        """Return the default fields that aliases set for these models: a list per alias, with an entry per target."""
        return [
            [(target.model, [each.fields for each in target.defaults]) for target in self._expand(name, shuffled=False)]
            for name in models
            if self.has_defaults(name)
        ]

    def _expand(
        self, name: str, defaults: tuple[RequestDefaults, ...] = (), *, shuffled: bool = True
    ) -> Iterator[ModelTarget]:
        listed = self._listed.get(name or self._default or "")
        if listed is None:
            yield ModelTarget(name, None, defaults)
            return
        for target in _by_weight(listed) if shuffled else listed:
            yield from self._expand(target.model, (*defaults, *target.defaults), shuffled=shuffled)

    def _is_special(self, name: str) -> bool:
        listed = self._listed.get(name, ())
        return any(target.weight is not None or target.defaults or self._is_special(target.model) for target in listed)

    def full_name(self, model: str) -> str:
        """Return a model's name as `provider/model`, whichever name was used; raises for an unknown one."""
        provider, upstream = self.resolve(model)
        name = model or self._default or ""
        prefix = self._aliases.get(name, name).partition("/")[0]
        return f"{prefix if prefix in self._providers else provider.name}/{upstream}"

    def names(self) -> list[str]:
        """Return every known name as callers write it: aliases, and the models that providers list."""
        listed = [f"{name}/{model}" for name, provider in self._providers.items() for model in provider.models()]
        return [*self._aliases, *listed]

    def for_callers(self, *further: str) -> Router:
        """Return a router for names from external callers.

        Providers that read files or download by name then serve only models named here, by the default, by an alias or
        among `further`, and those already present; they download nothing.
        """
        named: dict[str, set[str]] = {}
        default = [self._default] if isinstance(self._default_models, str | None) else self._default_models
        for model in (*default, *further, *(each for chain in self._chains.values() for each in chain)):
            with contextlib.suppress(UnknownModelError):
                prefix, _, upstream = self.full_name(model or "").partition("/")
                named.setdefault(prefix, set()).add(upstream)
        providers = {
            name: provider.for_callers(named.get(name, ())) if isinstance(provider, ReadsFiles) else provider
            for name, provider in self._providers.items()
        }
        return Router(providers, aliases=self._listed, default=self._default_models)

    def close(self) -> None:
        """Close every provider."""
        for provider in self._providers.values():
            provider.close()

    def _check_names(self, defaults: Iterable[str]) -> None:
        """Raise `ConfigError` for an alias or a default model without a provider."""
        for name, targets in self._chains.items():
            for target in targets:
                self._check(f"model_aliases.{name}", target)
        for name in defaults:
            self._check("default_model", self._aliases.get(name, name))

    def _check(self, where: str, target: str) -> None:
        prefix, slash, upstream = target.partition("/")
        if prefix not in self._providers or bool(slash) != bool(upstream):
            raise ConfigError(
                f"{target!r} is not a `provider/model` of a known provider",
                where=where,
                hint=f"The providers are: {', '.join(sorted(self._providers)) or 'none'}.",
            )

    def _unknown(self, name: str, message: str) -> UnknownModelError:
        from slipform.providers.catalog import load_catalog

        prefix, slash, rest = name.partition("/")
        catalog = load_catalog()
        vendor = catalog.vendors.get(prefix)
        if vendor is not None and prefix not in self._providers:
            hint = f"{prefix} is known; {vendor.setup_hint()}."
            what = "The provider {!r} is not in use" if vendor.key == "optional" else "No key is set for {!r}"
            return UnknownModelError(what.format(prefix), where=name, hint=hint, details={"model": name})
        maker = None if slash else catalog.maker_of(name)
        if maker is not None:
            remark = "" if maker.name in self._providers else f" {maker.name} is known; {maker.setup_hint()}."
            hint = f"Did you mean {maker.name}/{name}?{remark}"
            nearest = [f"{maker.name}/{name}"]
            return UnknownModelError(message, hint=hint, details={"model": name, "nearest": nearest})
        near = difflib.get_close_matches(name, self.names(), n=_NEAREST)
        vendors = [*self._providers, *(each for each in catalog.vendors if each not in self._providers)]
        for provider in difflib.get_close_matches(prefix, vendors, n=2):
            near.append(f"{provider}/{rest or '<model>'}")
        near += [each for each in self.names() if each.endswith(f"/{name}")]
        near = [candidate for candidate in dict.fromkeys(near) if candidate != name][:_NEAREST]
        if near:
            hint = f"Did you mean {', '.join(near)}?"
        else:
            hint = f"Name it as `provider/model`; the providers are: {', '.join(sorted(self._providers)) or 'none'}."
        return UnknownModelError(message, hint=hint, details={"model": name, "nearest": near})


def _targets(alias_target: str | Sequence[str | ModelTarget]) -> tuple[ModelTarget, ...]:
    listed = [alias_target] if isinstance(alias_target, str) else alias_target
    return tuple([ModelTarget(each) if isinstance(each, str) else each for each in listed])


def _by_weight(listed: Sequence[ModelTarget]) -> list[ModelTarget]:
    """Return the targets with weights in a random order that favours the heavier ones; then those without, in order."""
    weighted = [target for target in listed if target.weight]
    # Efraimidis and Spirakis: the order of these draws is that of weighted drawing without replacement.
    weighted.sort(key=lambda target: random.expovariate(1.0) / (target.weight or 1.0))
    return [*weighted, *(target for target in listed if not target.weight)]


def _follow(name: str, aliases: Mapping[str, str | Sequence[str]], chain: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the models that an alias resolves to, through other aliases, each once."""
    if name in chain:
        circle = " → ".join([*chain, name])
        raise ConfigError(f"The alias goes in a circle: {circle}", where=f"model_aliases.{chain[0]}")
    targets = aliases[name]
    listed = [targets] if isinstance(targets, str) else targets
    if not listed:
        raise ConfigError("The alias has no model", where=f"model_aliases.{name}", hint="List at least one.")
    expanded = ((_follow(each, aliases, (*chain, name)) if each in aliases else (each,)) for each in listed)
    return tuple(dict.fromkeys(model for models in expanded for model in models))
