"""Changes to the layers of Hugging Face's models."""
