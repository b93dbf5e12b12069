from decimal import Decimal

from pydantic import BaseModel
from pydantic_ai import Agent


class Invoice(BaseModel):
    number: str
    total: Decimal


agent = Agent("openai-chat:gpt-4o", output_type=Invoice)
print(agent.run_sync("Invoice A-1, total 1,234.50").output.total)
