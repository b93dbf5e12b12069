import os

from anthropic import Anthropic
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


proxy = os.environ["PROXY"]
openai = OpenAI(base_url=f"{proxy}/v1", api_key="any")
print(openai.responses.parse(model="m", input="Ada is 36", text_format=Person).output_parsed)
anthropic = Anthropic(base_url=proxy, api_key="any")
message = anthropic.messages.parse(
    model="m", max_tokens=99, messages=[{"role": "user", "content": "Ada is 36"}], output_format=Person
)
print(message.parsed_output)
