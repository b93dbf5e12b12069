"""What the shell proposes when Tab is pressed; nothing here may fail or be slow."""

from __future__ import annotations


def model_names(incomplete: str) -> list[str]:
    """The names of models that are known here.

    >>> "local/smollm2-135m" in model_names("local/")
    True
    """
    from slipform.engine import default_router
    from slipform.errors import SlipformError

    try:
        names = default_router().names()
    except SlipformError:  # a mistake in the config is for the command itself to tell
        return []
    return [name for name in names if name.startswith(incomplete)]


def dialects(incomplete: str) -> list[str]:
    """The schema dialects there are.

    >>> dialects("openai")
    ['openai']
    """
    from slipform.schema.lowering import dialect_names

    return [name for name in dialect_names() if name.startswith(incomplete)]
