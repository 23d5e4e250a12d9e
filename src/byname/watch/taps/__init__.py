"""How are values got at? One file for each kind of place."""
