"""The commands of simulations, of what comes before and after them, and of data."""
