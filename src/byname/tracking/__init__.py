"""What ran, and where: from a call to a line of the program."""
