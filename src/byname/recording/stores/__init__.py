"""Where recorded values go: to memory, or to an HDF5 file that a crash cannot spoil."""
