"""The verbs, a module each, and their command line."""
