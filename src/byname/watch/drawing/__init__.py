"""How is a model drawn? From its structure, or from one run of it, to boxes and lines, to SVG and DOT."""
