"""Programs' ways to keep a tensor alive, one function each; `planted.py` runs them all."""
