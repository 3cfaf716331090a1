"""The schemes. A new one is a class and a row in `SCHEMES`; the contract tests then hold it to every law."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from discreet.schemes.confined import ConfinedGradientDescent
from discreet.schemes.dp_fedavg import DPFedAvg
from discreet.schemes.dp_sgd import DPSGD
from discreet.schemes.dp_signfed import DPSignFed
from discreet.schemes.fedavg import FedAvg, FedSGD
from discreet.schemes.lossless import Lossless
from discreet.schemes.references import Centralized, Local
from discreet.schemes.robust import RobustFedAvg
from discreet.schemes.signfed import SignFed

SCHEMES: Mapping[str, type[Any]] = {
    "centralized": Centralized,
    "local": Local,
    "fedsgd": FedSGD,
    "fedavg": FedAvg,
    "robust-fedavg": RobustFedAvg,
    "signfed": SignFed,
    "dp-fedavg": DPFedAvg,
    "dp-signfed": DPSignFed,
    "dp-sgd": DPSGD,
    "cgd": ConfinedGradientDescent,
    "lossless": Lossless,
}

__all__ = [
    "DPSGD",
    "SCHEMES",
    "Centralized",
    "ConfinedGradientDescent",
    "DPFedAvg",
    "DPSignFed",
    "FedAvg",
    "FedSGD",
    "Local",
    "Lossless",
    "RobustFedAvg",
    "SignFed",
]
