"""Reading: looking at objects, modules, tensors, modes and frames without disturbing them."""
