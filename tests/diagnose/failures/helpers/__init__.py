"""What the programs share, each file with marks for the program that it is part of."""
