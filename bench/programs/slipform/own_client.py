from openai import OpenAI
from pydantic import BaseModel

import slipform


class Person(BaseModel):
    name: str
    age: int


client = slipform.wrap(OpenAI())
question = "Ada is 36"
response = client.chat.completions.parse(
    model="gpt-4o", messages=[{"role": "user", "content": question}], response_format=Person
)
print(response.choices[0].message.parsed, len(slipform.report_of(response).attempts))
