from typing import Annotated

from pydantic import BaseModel, Field
from pydantic_ai import Agent


class Trip(BaseModel):
    city: str
    sunny: bool


def forecast(city: str, days: Annotated[int, Field(le=7)]) -> str:
    """Forecast the weather."""
    return f"clear sky over {city} for {days} days"


print(Agent("openai-chat:gpt-4o", output_type=Trip, tools=[forecast]).run_sync("Where to?").output)
