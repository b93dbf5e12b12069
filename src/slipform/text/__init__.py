"""What the text holds."""
