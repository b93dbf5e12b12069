"""The rooms behind `slipform.schema.lowering`, its public door."""
