"""`provider/model` → the provider, and its own name for the model."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from slipform.errors import UnknownModelError
from slipform.providers.base import Provider


class Router:
    """Finds who answers for a model name; the first `/` splits the provider from the model.

    >>> from slipform.providers.local import LocalProvider
    >>> Router({"local": LocalProvider()}).resolve("local")[1]
    'smollm2-135m'
    """

    def __init__(self, providers: Mapping[str, Provider], default: str = "local") -> None:
        self.providers = dict(providers)
        self.default = default

    def resolve(self, model: str | None) -> tuple[Provider, str]:
        """The provider for a name, and the upstream's name for the model."""
        name, _, upstream = (model or self.default).partition("/")
        provider = self.providers.get(name)
        if provider is None:
            near = difflib.get_close_matches(name, self.providers, n=3, cutoff=0.4) or sorted(self.providers)
            raise UnknownModelError(
                f"There is no provider {name!r} for the model {model!r}",
                hint=f"Name a model as provider/model; did you mean: {', '.join(near)}?",
            )
        served = provider.models()
        if not upstream and served:
            return provider, served[0]
        if served and upstream not in served:
            raise UnknownModelError(
                f"The provider {name!r} has no model {upstream!r}", hint=f"It serves: {', '.join(served)}."
            )
        return provider, upstream

    def names(self) -> list[str]:
        """All the model names that are known to work, as callers write them."""
        return [f"{name}/{model}" for name, provider in self.providers.items() for model in provider.models()]

    def warm(self) -> None:
        """Let the default model's provider load what its first answer would otherwise wait for."""
        provider, _ = self.resolve(None)
        provider.warm()

    def close(self) -> None:
        """Close all providers."""
        for provider in self.providers.values():
            provider.close()
