"""Name the extra that installs a missing module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from slipform.errors import ConfigError

EXTRAS: Final = {
    "accelerate": "transformers",
    "botocore": "aws",
    "docx": "files",
    "gguf": "transformers",
    "google": "google",
    "llguidance": "local",
    "mcp": "mcp",
    "numpy": "transformers",
    "opentelemetry": "otel",
    "prometheus_client": "server",
    "pyarrow": "batch",
    "pypdfium2": "files",
    "python_calamine": "files",
    "ray": "ray",
    "redis": "redis",
    "selectolax": "files",
    "torch": "transformers",
    "transformers": "transformers",
    "uvloop": "server",
    "xllamacpp": "local",
    "xlsxwriter": "files",
}
"""The extra of pyproject.toml that brings each optional module."""


def missing_module(error: ModuleNotFoundError) -> ConfigError:
    """Return what to install, as the error that the command line prints.

    >>> missing_module(ModuleNotFoundError("No module named 'redis'", name="redis")).hint
    "Run `pip install 'slipform[redis]'`."
    """
    from slipform.errors import ConfigError

    name = (error.name or str(error)).partition(".")[0]
    if extra := EXTRAS.get(name):
        return ConfigError(
            f"This command needs the module {name}, which is not installed",
            hint=f"Run `pip install 'slipform[{extra}]'`.",
        )
    return ConfigError(
        f"The installation is incomplete: the module {error.name or error} is missing",
        hint="Run `pip install --force-reinstall slipform`.",
    )
