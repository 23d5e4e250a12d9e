"""Memory: what is alive, how much memory it takes, and what keeps it there."""
