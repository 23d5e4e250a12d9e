"""What some programs of the corpus import."""
