"""Streamed tool loops of OpenAI's Agents SDK against the proxy at argv[1], for each model after it. Prints JSON."""

import asyncio
import json
import sys

from agents import Agent, OpenAIConversationsSession, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI


@function_tool
def forecast(city: str) -> str:
    """Return the forecast."""
    return f"rain in {len(city)}"


async def main() -> None:
    set_tracing_disabled(True)
    results = {}
    async with AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="k", max_retries=0) as client:
        for name in sys.argv[2:]:
            agent = Agent(name="a", model=OpenAIResponsesModel(name, client), tools=[forecast])
            for how, more in (
                ("items", {}),
                ("previous", {"auto_previous_response_id": True}),
                ("conversation", {"conversation_id": (await client.conversations.create()).id}),
                ("session", {"session": OpenAIConversationsSession(openai_client=client)}),
            ):
                run = Runner.run_streamed(agent, "Weather?", **more)
                async for _ in run.stream_events():
                    pass
                results[f"{name} {how}"] = [len(run.raw_responses), run.final_output]
    print(json.dumps(results))


asyncio.run(main())
