"""Noise that hides a participant, and the account of what it hides."""
