"""Source: from a code object and an instruction to a file, a line, a statement and a variable."""
