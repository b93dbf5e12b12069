from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry

GUESTS = {"Ada", "Bob"}


class Booking(BaseModel):
    guest: str


agent = Agent("openai-chat:gpt-4o", output_type=Booking)


@agent.output_validator
def known(booking: Booking) -> Booking:
    if booking.guest not in GUESTS:
        raise ModelRetry(f"there is no guest {booking.guest}")
    return booking


print(repr(agent.run_sync("Book it.").output))
