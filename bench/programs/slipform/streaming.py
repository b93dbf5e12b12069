from pydantic import BaseModel

import slipform


class Task(BaseModel):
    title: str
    done: bool


with slipform.stream(list[Task], "Plan the move.", model="openai/gpt-4o") as stream:
    for partial in stream:
        print(len(partial), [task.title for task in partial if isinstance(task, Task)])
