"""What pydantic-ai makes of recorded answers, at the vendor (argv[1]) and through the proxy (argv[2]). Prints JSON.

argv[3] is a file with the cases: the recording's name, the API, the model, the tools, whether it is streamed.
"""

import asyncio
import json
import sys
import urllib.request
from dataclasses import asdict
from pathlib import Path

from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UnexpectedModelBehavior
from pydantic_ai.messages import ModelRequest, UserPromptPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition


def model_of(api: str, name: str, address: str) -> Model:
    if api == "openai-chat":
        return OpenAIChatModel(name, provider=OpenAIProvider(base_url=f"{address}/v1", api_key="k"))
    if api == "openai-responses":
        return OpenAIResponsesModel(name, provider=OpenAIProvider(base_url=f"{address}/v1", api_key="k"))
    if api == "anthropic-messages":
        return AnthropicModel(name, provider=AnthropicProvider(base_url=address, api_key="k"))
    return GoogleModel(name, provider=GoogleProvider(base_url=address, api_key="k"))


async def answer(model: Model, tools: list, *, stream: bool) -> dict:
    parameters = ModelRequestParameters(
        function_tools=[ToolDefinition(name=each["name"], parameters_json_schema=each["schema"]) for each in tools],
        allow_text_output=True,
    )
    messages = [ModelRequest(parts=[UserPromptPart("hi")])]
    try:
        if not stream:
            return shown(await model.request(messages, None, parameters))
        async with model.request_stream(messages, None, parameters) as events:
            async for _ in events:
                pass
            return shown(events.get())
    except ModelHTTPError as error:
        return {"raised": "ModelHTTPError", "status": error.status_code}
    except (ModelAPIError, UnexpectedModelBehavior) as error:
        return {"raised": type(error).__name__}
    except Exception as error:  # noqa: BLE001  # the limits of pydantic-ai itself: such answers are not compared
        return {"unreadable": repr(error)[:300]}


def shown(response: object) -> dict:
    return without_times(json.loads(json.dumps(asdict(response), default=str)))


def without_times(value: object) -> object:
    """A value without what differs between any two calls."""
    if isinstance(value, list):
        return [without_times(each) for each in value]
    if isinstance(value, dict):
        return {key: without_times(each) for key, each in value.items() if key not in ("timestamp", "provider_url")}
    return value


async def answers(case: dict, addresses: tuple[str, str]) -> list:
    return [
        await answer(model_of(case["api"], case["model"], address), case["tools"], stream=case["stream"])
        for address in addresses
    ]


vendor, proxy, path = sys.argv[1:]
results = {}
for case in json.loads(Path(path).read_text()):
    urllib.request.urlopen(f"{vendor}/recording/{case['name']}").read()
    results[case["name"]] = asyncio.run(answers(case, (vendor, proxy)))
print(json.dumps(results))
