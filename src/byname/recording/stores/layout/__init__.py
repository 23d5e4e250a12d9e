"""How values lie in an HDF5 file."""
