"""Which places of a model does a path mean?"""
