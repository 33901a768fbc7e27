"""The verbs, a module each: options → result."""
