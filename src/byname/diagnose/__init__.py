"""Diagnosis: why backward failed, did nothing, or made what is not finite."""
