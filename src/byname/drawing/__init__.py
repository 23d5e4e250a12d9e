"""Drawing: pictures of a model, from its modules or from one run of it: boxes and lines as SVG, DOT or Mermaid."""
