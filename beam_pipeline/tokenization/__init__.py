"""Text → token ids: engines behind one small interface, and what every tokenizer needs around them."""
