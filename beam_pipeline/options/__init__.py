"""The options of all verbs, each declared once."""
