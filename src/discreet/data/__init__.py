"""Data sets, and who holds which examples."""
