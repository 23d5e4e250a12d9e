"""Reporting: one HTML page of recordings, censuses, findings and other results, for people who read it elsewhere."""
