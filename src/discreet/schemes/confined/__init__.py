"""Confined gradient descent: no model is ever shared, only the sum of gradients is."""

from discreet.schemes.confined.scheme import ConfinedGradientDescent

__all__ = ["ConfinedGradientDescent"]
