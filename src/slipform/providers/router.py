"""`provider/model` or an alias → who answers, and under what name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from slipform.errors import ConfigError, UnknownModelError
from slipform.providers.base import Provider

_NEAREST = 5


class Router:
    """Finds the provider of a model. The first `/` splits the provider's name from its own name for the model.

    A provider's bare name stands for the first model it lists. The default is the one given, else the only provider.

    ::

        router = Router({"openai": openai}, aliases={"fast": "openai/gpt-6-luna"}, default="fast")
        provider, upstream_model = router.resolve("fast")
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        aliases: Mapping[str, str] | None = None,
        default: str | None = None,
    ) -> None:
        self._providers = dict(providers)
        self._aliases = {name: _follow(name, aliases or {}) for name in aliases or {}}
        for name, target in self._aliases.items():
            self._check(f"model_aliases.{name}", target)
        self._default = default
        if default is None and len(self._providers) == 1:
            self._default = next(iter(self._providers))
        elif default is not None:
            self._check("default model", self._aliases.get(default, default))

    @property
    def providers(self) -> Mapping[str, Provider]:
        """The providers by name."""
        return MappingProxyType(self._providers)

    @property
    def aliases(self) -> Mapping[str, str]:
        """The aliases, each with the `provider/model` it ends at."""
        return MappingProxyType(self._aliases)

    def resolve(self, model: str | None = None) -> tuple[Provider, str]:
        """The provider and its own name for the model; no name means the default model.

        Raises `UnknownModelError`, which lists the nearest names.
        """
        name = model or self._default
        if not name:
            raise UnknownModelError(
                "No model was named and there is no default model", hint="Give one as `provider/model`."
            )
        full = self._aliases.get(name, name)
        prefix, slash, upstream = full.partition("/")
        provider = self._providers.get(prefix)
        if provider is None:
            raise self._unknown(name, f"Unknown model {name!r}")
        if not slash and (known := provider.models()):
            return provider, known[0]
        if not upstream:
            raise self._unknown(name, f"{name!r} names a provider without a model")
        if not provider.serves(upstream):
            raise self._unknown(name, f"The provider {prefix!r} serves no model {upstream!r}")
        return provider, upstream

    def names(self) -> list[str]:
        """Every name that is known to work, as callers write it: aliases, and the models that providers list."""
        listed = [f"{name}/{model}" for name, provider in self._providers.items() for model in provider.models()]
        return [*self._aliases, *listed]

    def close(self) -> None:
        """Close every provider."""
        for provider in self._providers.values():
            provider.close()

    def _check(self, where: str, target: str) -> None:
        prefix, slash, upstream = target.partition("/")
        if prefix not in self._providers or bool(slash) != bool(upstream):
            raise ConfigError(
                f"{target!r} is not a `provider/model` of a known provider",
                where=where,
                hint=f"The providers are: {', '.join(sorted(self._providers)) or 'none'}.",
            )

    def _unknown(self, name: str, message: str) -> UnknownModelError:
        prefix, _, rest = name.partition("/")
        near = difflib.get_close_matches(name, self.names(), n=_NEAREST)
        for provider in difflib.get_close_matches(prefix, list(self._providers), n=2):
            near.append(f"{provider}/{rest or '<model>'}")
        near += [known for known in self.names() if known.endswith(f"/{name}")]
        near = [candidate for candidate in dict.fromkeys(near) if candidate != name][:_NEAREST]
        if near:
            hint = f"Did you mean {', '.join(near)}?"
        else:
            hint = f"Name it as `provider/model`; the providers are: {', '.join(sorted(self._providers)) or 'none'}."
        return UnknownModelError(message, hint=hint, details={"model": name, "nearest": near})


def _follow(name: str, aliases: Mapping[str, str]) -> str:
    seen = [name]
    target = aliases[name]
    while target in aliases:
        if target in seen:
            raise ConfigError(
                f"The alias goes in a circle: {' → '.join([*seen, target])}", where=f"model_aliases.{name}"
            )
        seen.append(target)
        target = aliases[target]
    return target
