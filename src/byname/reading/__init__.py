"""Looking at objects, modules, tensors and frames without disturbing them."""
