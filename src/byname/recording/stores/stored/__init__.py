"""What is read back from a file, of which nothing is believed."""
