import instructor
from pydantic import BaseModel


class Task(BaseModel):
    title: str
    done: bool


client = instructor.from_provider("openai/gpt-4o")
messages = [{"role": "user", "content": "Plan the move."}]
for task in client.create_iterable(messages=messages, response_model=Task):
    print(task.title)
