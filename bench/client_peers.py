"""Measure the other libraries of `bench.client` in their own environment, and print the results as JSON.

Run by `bench.client` as `python -m bench.client_peers URL`; one object a line, with `error` where one is not there.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.client_shapes import MODEL, PROMPT, Invoice, import_ms, per_call, per_stream

MESSAGES: Any = [{"role": "user", "content": PROMPT}]

BAML = """
generator target {{
  output_type "python/pydantic"
  output_dir ".."
  version "{version}"
  default_client_mode sync
}}
class Line {{
  description string
  quantity int
  price float
}}
class Party {{
  name string
  street string
  city string
}}
class Invoice {{
  number string
  seller Party
  buyer Party
  lines Line[]
  notes string
}}
client<llm> Bench {{
  provider "openai-generic"
  options {{
    base_url env.BENCH_URL
    api_key "any"
    model "{model}"
  }}
}}
function Read(text: string) -> Invoice {{
  client Bench
  prompt #"
    {{{{ text }}}} {{{{ ctx.output_format }}}}
  "#
}}
"""


# Each maker gives a call, or a stream, or raises ImportError.


def openai_parse(url: str) -> Callable[[], object]:
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key="any")
    return lambda: client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Invoice)


def instructor_tools(url: str) -> Callable[[], object]:
    import instructor
    from openai import OpenAI

    client: Any = instructor.from_openai(OpenAI(base_url=url, api_key="any"), mode=instructor.Mode.JSON_SCHEMA)
    return lambda: client.chat.completions.create(model=MODEL, messages=MESSAGES, response_model=Invoice)


def pydantic_ai(url: str) -> Callable[[], object]:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=url, api_key="any"))
    agent: Any = Agent(model, output_type=NativeOutput(Invoice))
    loop = asyncio.new_event_loop()
    return lambda: loop.run_until_complete(agent.run(PROMPT)).output


def langchain(url: str) -> Callable[[], object]:
    from langchain_openai import ChatOpenAI

    model: Any = ChatOpenAI(model=MODEL, base_url=url, api_key="any")
    chain = model.with_structured_output(Invoice, method="json_schema")
    return lambda: chain.invoke(PROMPT)


def baml_client(url: str) -> Any:
    """The client that BAML's own generator writes for the same shape."""
    folder = Path(tempfile.mkdtemp())
    (folder / "baml_src").mkdir()
    text = BAML.format(version=version("baml-py"), model=MODEL)
    (folder / "baml_src" / "main.baml").write_text(text, encoding="utf-8")
    command = [str(Path(sys.executable).with_name("baml-cli")), "generate", "--from", "baml_src"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    os.environ.update(BENCH_URL=url, BAML_LOG="off")
    sys.path.insert(0, str(folder))
    return import_module("baml_client.sync_client").b


def baml(url: str) -> Callable[[], object]:
    client = baml_client(url)
    return lambda: client.Read(PROMPT)


def openai_stream(url: str) -> Iterator[Any]:
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key="any")
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, response_format=Invoice) as stream:
        for event in stream:
            if event.type == "content.delta":
                yield event.parsed


def instructor_stream(url: str) -> Iterator[Any]:
    import instructor
    from openai import AsyncOpenAI

    client: Any = instructor.from_openai(AsyncOpenAI(base_url=url, api_key="any"), mode=instructor.Mode.JSON_SCHEMA)

    async def partials() -> AsyncIterator[Any]:
        async for partial in client.chat.completions.create_partial(
            model=MODEL, messages=MESSAGES, response_model=Invoice
        ):
            yield partial

    loop = asyncio.new_event_loop()
    source = partials()
    while True:
        try:
            yield loop.run_until_complete(anext(source))
        except StopAsyncIteration:
            return


def baml_stream(url: str) -> Iterator[Any]:
    yield from baml_client(url).stream.Read(PROMPT)


CALLERS: dict[str, tuple[str, Callable[[str], Callable[[], object]]]] = {
    "openai .parse": ("from openai import OpenAI", openai_parse),
    "instructor JSON_SCHEMA": (
        "import instructor; from openai import OpenAI; instructor.from_openai",
        instructor_tools,
    ),
    "langchain json_schema": ("from langchain_openai import ChatOpenAI", langchain),
    "pydantic-ai native": ("from pydantic_ai.models.openai import OpenAIChatModel", pydantic_ai),
    "baml": ("import baml_py", baml),
}
STREAMERS: dict[str, Callable[[str], Iterator[Any]]] = {
    "openai .stream": openai_stream,
    "instructor async partial": instructor_stream,
    "baml stream": baml_stream,
}


def tell(kind: str, name: str, measure: Callable[[], dict[str, Any]]) -> None:
    """One line of JSON with what was measured, or with why it was not."""
    try:
        found = measure()
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps({"kind": kind, "name": name, **found}), flush=True)


def measured(url: str, statement: str, make: Callable[[str], Callable[[], object]]) -> dict[str, Any]:
    """Import time and CPU per call."""
    call = make(url)
    call()
    return {"import": import_ms(statement, installed=True), "call": per_call(call)}


def main(url: str) -> None:
    """Measure all of them."""
    for name, (statement, make) in CALLERS.items():
        tell("call", name, lambda: measured(url, statement, make))  # noqa: B023 — called at once
    for name, run in STREAMERS.items():
        tell("stream", name, lambda: per_stream(lambda: run(url)))  # noqa: B023 — called at once


if __name__ == "__main__":
    main(sys.argv[1])
