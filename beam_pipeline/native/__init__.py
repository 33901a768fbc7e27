"""The compiled inner loops of writing records."""
