"""Series as arrays, tables and text: numpy, pandas, xarray."""
