"""Running statistics: figures of data that comes in batches, which can be put together over parts and processes."""
