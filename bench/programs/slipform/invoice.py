from decimal import Decimal

from pydantic import BaseModel

import slipform


class Invoice(BaseModel):
    number: str
    total: Decimal


invoice = slipform.ask(Invoice, "Invoice A-1, total 1,234.50", model="openai/gpt-4o", max_attempts=2)
print(invoice.total)
