from pydantic import BaseModel

import slipform

GUESTS = {"Ada", "Bob"}


class Booking(BaseModel):
    guest: str


def known(booking: Booking) -> tuple[str, str] | None:
    return None if booking.guest in GUESTS else ("guest", f"there is no guest {booking.guest}")


print(slipform.ask(Booking, "Book it.", validators=[known], max_attempts=2, model="openai/gpt-4o"))
