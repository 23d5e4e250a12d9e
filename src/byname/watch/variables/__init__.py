"""How are the local variables of a method told? By rewriting its source."""
