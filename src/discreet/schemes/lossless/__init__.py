"""Lossless perturbation (arXiv 2002.09843): a model disguised anew each round, and its exact gradient recovered."""

from discreet.schemes.lossless.scheme import Lossless

__all__ = ["Lossless"]
