"""What a curious party learns: each attack is a function on a view, and on the party's own data.

An attack gets what its party received (`discreet.view.View`), what the party holds itself, and public facts: the
network's layers, the loss, the settings. It never gets the server's state or anybody else's data. `discreet.audits`
runs the attacks and judges them by what a simulation knows besides.
"""

from __future__ import annotations

from discreet.adversaries.inference.membership import Membership, loss_threshold, membership
from discreet.adversaries.inference.perturbed import Disguised, Estimate

__all__ = ["Disguised", "Estimate", "Membership", "loss_threshold", "membership"]
