"""LangChain's structured output against the proxy at argv[1]; prints what it got. Runs in the peers' environment."""

import json
import sys

from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


SCHEMA = {**Person.model_json_schema(), "additionalProperties": False}
model = ChatOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="k", model="m", max_retries=0)
seen = {}
for method in ("json_schema", "function_calling"):
    shaped = model.with_structured_output(Person, method=method)
    seen[method] = shaped.invoke("Ada is 36").model_dump()
streamed = model.with_structured_output(SCHEMA, method="json_schema")
seen["stream"] = list(streamed.stream("Ada is 36"))[-1]
print(json.dumps(seen))
