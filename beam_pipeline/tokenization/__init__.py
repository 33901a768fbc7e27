"""Text → token ids: engines behind one small interface, and the preparation that every tokenizer needs."""
