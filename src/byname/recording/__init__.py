"""Recording: values over a run, taken at places of a model, kept in memory or in files, and opened again."""
