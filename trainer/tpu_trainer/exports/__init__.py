"""Models in Hugging Face's formats: writing, reading, model cards, uploads to the Hub, and sampling."""
