"""Adding up what participants contribute."""
