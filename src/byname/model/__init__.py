"""Model: the places that a model has, and which of them a path, a selector or a class means; nothing runs here."""
