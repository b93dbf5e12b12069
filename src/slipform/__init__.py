"""slipform: any language model, answering in the shape of your JSON Schema."""
