"""What does byname cost? Ratios against floors and rivals, each from one interleaved run."""
