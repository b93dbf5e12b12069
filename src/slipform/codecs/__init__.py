"""How each vendor spells it."""
