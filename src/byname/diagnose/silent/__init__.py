"""Silent: subjects that are watched while a program runs, to find training that learns the wrong thing."""
