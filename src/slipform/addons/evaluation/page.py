"""Build a page as a single file: styles, scripts and data inside it, and a policy that blocks everything else.

It looks like the console: the common styles (`base.css`) and the function that builds nodes are read from there.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files

CONSOLE = "addons/server/console/static"
OWN = "addons/evaluation/static"
_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; base-uri 'none'; form-action 'none'"
)


def whole_page(
    title: str, body: str, *, styles: Sequence[str], scripts: Sequence[str], data: Mapping[str, Iterable[bytes]]
) -> Iterable[bytes]:
    """Yield the parts of a page. `data` are lines of JSON by the id of their element.

    `styles` and `scripts` are files of the package; the console's `base.css` precedes them. The data is text in JSON
    strings, escaped so that no part of it can end the element or begin another.
    """
    style = "\n".join(map(_text, [f"{CONSOLE}/base.css", *styles]))
    script = "\n".join(map(_module, scripts))
    policy = _POLICY.format(scripts=_hash(script), styles=_hash(style))
    icon = base64.b64encode(_text(f"{CONSOLE}/icon.svg").encode()).decode()
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{html.escape(title)}</title>\n<link rel="icon" href="data:image/svg+xml;base64,{icon}">\n'
        f"<style>{style}</style>\n</head>\n<body>\n{body}\n"
    ).encode()
    for name, lines in data.items():
        yield f'<script type="application/json" id="{html.escape(name)}">'.encode()
        for line in lines:
            yield line.replace(b"<", b"\\u003c") + b"\n"
        yield b"</script>\n"
    yield f'<script type="module">{script}</script>\n</body>\n</html>\n'.encode()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"


@cache
def _text(path: str) -> str:
    return (files("slipform") / path).read_text("utf-8")


def _module(path: str) -> str:
    """Return a module as part of the page's single script, after the modules that it imports."""
    lines = _text(path).split("\n")
    return "\n".join(line.removeprefix("export ") for line in lines if not line.startswith("import "))
