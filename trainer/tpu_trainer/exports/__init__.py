"""Models in Hugging Face's formats: written, read, described, pushed, asked."""
