from typing import Annotated

from pydantic import BaseModel, Field

import slipform


class Trip(BaseModel):
    city: str
    sunny: bool


def forecast(city: str, days: Annotated[int, Field(le=7)]) -> str:
    """Forecast the weather."""
    return f"clear sky over {city} for {days} days"


print(slipform.ask(Trip, "Where to?", tools=[forecast], model="openai/gpt-4o"))
