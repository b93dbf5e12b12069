import asyncio

from pydantic_ai import Agent


async def main() -> None:
    agent = Agent("openai-chat:gpt-4o", output_type=int)
    tasks = [asyncio.create_task(agent.run(f"How old is number {n}?")) for n in range(200)]
    for task in tasks[190:]:
        task.cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    print(sum(not isinstance(answer, BaseException) for answer in answers))


asyncio.run(main())
