"""Variables: local variables of a method, reported by rewriting its source."""
