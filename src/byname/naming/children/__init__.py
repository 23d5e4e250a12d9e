"""Children: what an object holds, and how the program writes one step to it."""
