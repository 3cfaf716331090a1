"""discreet: private, robust federated learning for PyTorch.

::

    import discreet

    data = discreet.load("digits")
    experiment = discreet.Experiment(scheme=discreet.SignFed(learning_rate=0.1), rounds=20)
    run = discreet.simulate(experiment, data=data)
    print(run.final)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discreet.adversaries.settings import Adversary
    from discreet.config import Data, Dropouts, Engine, Experiment, Model, Privacy
    from discreet.data.dataset import Dataset
    from discreet.data.partition import Partition
    from discreet.data.sources import load
    from discreet.errors import (
        ConfigError,
        DataError,
        DiscreetError,
        Diverged,
        ModelError,
        RunFolderError,
        UserError,
    )
    from discreet.results import Run
    from discreet.schemes import (
        DPSGD,
        SCHEMES,
        Centralized,
        ConfinedGradientDescent,
        DPFedAvg,
        DPSignFed,
        FedAvg,
        FedSGD,
        Local,
        Lossless,
        RobustFedAvg,
        SignFed,
    )
    from discreet.simulation import simulate

_PLACES = {
    "Adversary": "discreet.adversaries.settings",
    "Data": "discreet.config",
    "Dropouts": "discreet.config",
    "Engine": "discreet.config",
    "Experiment": "discreet.config",
    "Model": "discreet.config",
    "Privacy": "discreet.config",
    "Dataset": "discreet.data.dataset",
    "Partition": "discreet.data.partition",
    "load": "discreet.data.sources",
    "ConfigError": "discreet.errors",
    "DataError": "discreet.errors",
    "DiscreetError": "discreet.errors",
    "Diverged": "discreet.errors",
    "ModelError": "discreet.errors",
    "RunFolderError": "discreet.errors",
    "UserError": "discreet.errors",
    "Run": "discreet.results",
    "SCHEMES": "discreet.schemes",
    "Centralized": "discreet.schemes",
    "ConfinedGradientDescent": "discreet.schemes",
    "DPFedAvg": "discreet.schemes",
    "DPSGD": "discreet.schemes",
    "DPSignFed": "discreet.schemes",
    "FedAvg": "discreet.schemes",
    "FedSGD": "discreet.schemes",
    "Local": "discreet.schemes",
    "Lossless": "discreet.schemes",
    "RobustFedAvg": "discreet.schemes",
    "SignFed": "discreet.schemes",
    "simulate": "discreet.simulation",
}

__all__ = [
    "DPSGD",
    "SCHEMES",
    "Adversary",
    "Centralized",
    "ConfigError",
    "ConfinedGradientDescent",
    "DPFedAvg",
    "DPSignFed",
    "Data",
    "DataError",
    "Dataset",
    "DiscreetError",
    "Diverged",
    "Dropouts",
    "Engine",
    "Experiment",
    "FedAvg",
    "FedSGD",
    "Local",
    "Lossless",
    "Model",
    "ModelError",
    "Partition",
    "Privacy",
    "RobustFedAvg",
    "Run",
    "RunFolderError",
    "SignFed",
    "UserError",
    "load",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the command line then answers before torch is loaded."""
    if name not in _PLACES:
        raise AttributeError(f"module 'discreet' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
