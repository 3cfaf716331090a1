"""discreet: private, robust federated learning for PyTorch.

::

    import discreet

    data = discreet.load("digits")
    experiment = discreet.Experiment(scheme=discreet.SignFed(learning_rate=0.1), rounds=20)
    run = discreet.simulate(experiment, data=data)
    print(run.final)
"""

from discreet.config import Data, Engine, Experiment, Model
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
from discreet.schemes import SCHEMES, Centralized, FedAvg, FedSGD, Local, SignFed
from discreet.simulation import simulate

__all__ = [
    "SCHEMES",
    "Centralized",
    "ConfigError",
    "Data",
    "DataError",
    "Dataset",
    "DiscreetError",
    "Diverged",
    "Engine",
    "Experiment",
    "FedAvg",
    "FedSGD",
    "Local",
    "Model",
    "ModelError",
    "Partition",
    "Run",
    "RunFolderError",
    "SignFed",
    "UserError",
    "load",
    "simulate",
]
