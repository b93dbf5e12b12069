import asyncio

import instructor


async def main() -> None:
    client = instructor.from_provider("openai/gpt-4o", async_client=True)
    tasks = []
    for n in range(200):
        messages = [{"role": "user", "content": f"How old is number {n}?"}]
        tasks.append(asyncio.create_task(client.create(messages=messages, response_model=int)))
    for task in tasks[190:]:
        task.cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    print(sum(isinstance(answer, int) for answer in answers))


asyncio.run(main())
