from decimal import Decimal

import instructor
from pydantic import BaseModel


class Invoice(BaseModel):
    number: str
    total: Decimal


client = instructor.from_provider("openai/gpt-4o")
messages = [{"role": "user", "content": "Invoice A-1, total 1,234.50"}]
print(client.create(messages=messages, response_model=Invoice).total)
