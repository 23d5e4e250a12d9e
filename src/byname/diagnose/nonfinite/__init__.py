"""Non-finite values: the operation that first turned finite numbers into NaN or Inf, forward or backward."""
