"""OpenAI's Agents SDK against the proxy at argv[1]: turns that go on by `previous_response_id`. Prints JSON."""

import asyncio
import json
import sys

from agents import Agent, OpenAIResponsesModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


async def main() -> None:
    set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="k", max_retries=0) as client:
        agent = Agent(name="a", model=OpenAIResponsesModel(sys.argv[2], client))
        first = await Runner.run(agent, "one")
        second = await Runner.run(agent, "two", previous_response_id=first.last_response_id)
        streamed = Runner.run_streamed(agent, "three", previous_response_id=second.last_response_id)
        async for _ in streamed.stream_events():
            pass
        typed = Agent(name="t", model=OpenAIResponsesModel(sys.argv[2], client), output_type=Person)
        last = await Runner.run(typed, "Ada is 36", previous_response_id=streamed.last_response_id)
    outputs = [first.final_output, second.final_output, streamed.final_output, last.final_output.model_dump()]
    print(json.dumps({"outputs": outputs, "ids": [first.last_response_id, last.last_response_id]}))


asyncio.run(main())
