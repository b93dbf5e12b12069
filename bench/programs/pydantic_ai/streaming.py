import asyncio

from pydantic import BaseModel
from pydantic_ai import Agent


class Task(BaseModel):
    title: str
    done: bool


async def main() -> None:
    agent = Agent("openai-chat:gpt-4o", output_type=list[Task])
    async with agent.run_stream("Plan the move.") as stream:
        async for tasks in stream.stream_output(debounce_by=None):
            print(len(tasks), [task.title for task in tasks])


asyncio.run(main())
