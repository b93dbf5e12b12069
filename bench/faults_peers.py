"""Try other libraries on the faults; run by `bench.faults` with the interpreter that has them, prints JSON.

`python -m bench.faults_peers http://127.0.0.1:8080/v1`. The API key says which library, fault and kind of model it is:
the server keeps a script for each. What a library cannot be loaded for is told in `missing`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from bench.faults_data import ALL, PROMPT, Invoice

Ask: TypeAlias = Callable[[str, str], Any]
MODEL = "gpt-5"
MESSAGES: Any = [{"role": "user", "content": PROMPT}]


def openai_parse(url: str, key: str) -> Any:
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key=key, max_retries=0)
    answer = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Invoice)
    return answer.choices[0].message.parsed


def instructor(url: str, key: str) -> Any:
    import instructor as library
    from openai import OpenAI

    client: Any = library.from_openai(OpenAI(base_url=url, api_key=key, max_retries=0), mode=library.Mode.MD_JSON)
    return client.create(model=MODEL, messages=MESSAGES, response_model=Invoice, max_retries=2)


def pydantic_ai(url: str, key: str) -> Any:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=url, api_key=key))
    agent: Any = Agent(model, output_type=NativeOutput(Invoice), retries=2)
    return asyncio.run(agent.run(PROMPT)).output


def langchain(url: str, key: str) -> Any:
    from langchain_openai import ChatOpenAI

    model: Any = ChatOpenAI(model=MODEL, base_url=url, api_key=key, max_retries=0)
    return model.with_structured_output(Invoice, method="json_mode").invoke(PROMPT)


BAML_SOURCE = """
class Line {{
  name string
  quantity int
  price float
}}
class Invoice {{
  number string
  status "draft" | "sent" | "paid"
  total float
  lines Line[]
  notes string
}}
client<llm> Fake {{
  provider openai
  options {{
    model "gpt-5"
    base_url "{url}"
    api_key "{key}"
  }}
}}
function Read(text: string) -> Invoice {{
  client Fake
  prompt #"{{{{ text }}}} {{{{ ctx.output_format }}}}"#
}}
"""


def baml(url: str, key: str) -> Any:
    from baml_py import BamlRuntime

    source = BAML_SOURCE.format(url=url, key=key)
    runtime = BamlRuntime.from_files("baml_src", {"main.baml": source}, {})
    context = runtime.create_context_manager()
    result: Any = runtime.call_function_sync("Read", {"text": PROMPT}, context, None, None, [], {}, {})
    shapes = sys.modules[Invoice.__module__]
    return result.cast_to(shapes, shapes, shapes, False, runtime)


LIBRARIES: dict[str, Ask] = {
    "Instructor": instructor,
    "pydantic-ai": pydantic_ai,
    "LangChain": langchain,
    "openai .parse": openai_parse,
    "BAML": baml,
}


def tried(ask: Ask, url: str, key: str) -> dict[str, Any]:
    try:
        found = ask(url, key)
    except Exception as error:  # whatever it is, there is no value
        return {"error": type(error).__name__, "said": str(error)[:200]}
    return {"value": found.model_dump(mode="json") if isinstance(found, Invoice) else found}


def main() -> None:
    """All libraries, all faults, both kinds of model."""
    results: dict[str, dict[str, Any]] = {}
    for name, ask in LIBRARIES.items():
        results[name] = {}
        for at in range(len(ALL)):
            for kind in ("repeats", "mends"):
                key = f"{name}|{at}|{kind}"
                results[name][key] = tried(ask, sys.argv[1], key)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
