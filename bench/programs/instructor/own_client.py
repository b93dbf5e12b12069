import instructor
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


client = instructor.from_openai(OpenAI())
question = "Ada is 36"
person = client.chat.completions.create(
    model="gpt-4o", messages=[{"role": "user", "content": question}], response_model=Person
)
print(person)
