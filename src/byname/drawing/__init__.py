"""Drawing: a model, from its structure or from one run of it, as boxes and lines, as SVG and DOT."""
