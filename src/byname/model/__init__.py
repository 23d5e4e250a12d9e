"""Model: the places of a model that a path, a selector, a class or a module means; nothing runs here."""
