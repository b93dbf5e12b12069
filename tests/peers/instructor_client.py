"""Instructor against the proxy at argv[1]; prints what it got as JSON. Runs in the peers' environment."""

import json
import sys

import instructor
import openai
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


WORDS = [{"role": "user", "content": "Ada is 36"}]
seen = {}
for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
    client = instructor.from_openai(openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="k", max_retries=0), mode=mode)
    got = client.chat.completions.create(model="m", messages=WORDS, response_model=Person, max_retries=0)
    seen[mode.name.lower()] = got.model_dump()
client = instructor.from_openai(
    openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="k", max_retries=0), mode=instructor.Mode.JSON_SCHEMA
)
partials = list(client.chat.completions.create_partial(model="m", messages=WORDS, response_model=Person))
seen["stream"] = partials[-1].model_dump()
print(json.dumps(seen))
