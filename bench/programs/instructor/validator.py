import instructor
from pydantic import BaseModel, field_validator

GUESTS = {"Ada", "Bob"}


class Booking(BaseModel):
    guest: str

    @field_validator("guest")
    @classmethod
    def known(cls, guest: str) -> str:
        assert guest in GUESTS, f"there is no guest {guest}"
        return guest


client = instructor.from_provider("openai/gpt-4o")
messages = [{"role": "user", "content": "Book it."}]
print(client.create(messages=messages, response_model=Booking, max_retries=2))
