"""Values over a run: recorded at places of a model, kept in memory or in files, and opened again."""
