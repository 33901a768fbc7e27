"""Text → token ids: engines behind one small interface, exact against Hugging Face's `tokenizers`."""
