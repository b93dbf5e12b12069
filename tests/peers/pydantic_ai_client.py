"""pydantic-ai against the proxy at argv[1]; prints what it got as JSON. Runs in the peers' environment."""

import asyncio
import json
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Person(BaseModel):
    name: str
    age: int


async def main() -> None:
    model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="k"))
    seen = {}
    for name, output in (("native", NativeOutput(Person)), ("tool", ToolOutput(Person))):
        agent = Agent(model, output_type=output, retries=0)
        seen[name] = (await agent.run("Ada is 36")).output.model_dump()
    async with Agent(model, output_type=NativeOutput(Person), retries=0).run_stream("Ada is 36") as stream:
        seen["stream"] = (await stream.get_output()).model_dump()
    print(json.dumps(seen))


asyncio.run(main())
