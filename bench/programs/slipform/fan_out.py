import asyncio

from slipform import AsyncClient


async def main() -> None:
    async with AsyncClient("openai/gpt-4o") as client:
        tasks = [asyncio.create_task(client.ask(int, f"How old is number {n}?")) for n in range(200)]
        for task in tasks[190:]:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        print(sum(isinstance(answer, int) for answer in answers))


asyncio.run(main())
