"""What joins byname to other tools."""
