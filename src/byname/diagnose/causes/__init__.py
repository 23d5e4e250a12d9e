"""One file for each family of failures: how it is recognised, whose fault it is, and what to write instead."""
