"""Who is this tensor? Names from tags, modules, optimizers, variables and the log of what ran."""
