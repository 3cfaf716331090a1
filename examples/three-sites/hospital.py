"""What the hospitals have agreed on: how a table is read, and which network is trained."""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from torch import nn

from discreet import Dataset
from discreet.cohort import Examples

FEATURES = {
    "radius": (14.0, 3.5),
    "texture": (19.0, 4.0),
    "perimeter": (92.0, 24.0),
    "area": (650.0, 350.0),
    "smoothness": (0.096, 0.014),
    "compactness": (0.10, 0.05),
    "concavity": (0.09, 0.08),
    "concave_points": (0.05, 0.04),
    "symmetry": (0.18, 0.03),
    "fractal_dimension": (0.063, 0.007),
}
"""The columns, each with a usual value and a usual spread from the literature: nobody has to tell his own."""

CLASSES = ("benign", "malignant")


class Net(nn.Module):
    """A small network, written as a user would."""

    def __init__(self, input_shape: tuple[int, ...], outputs: int, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(input_shape[0], width), nn.Tanh(), nn.Linear(width, outputs))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """One row a patient in, one column a class out."""
        return self.layers(inputs)


def read(path: Path) -> Examples:
    """A hospital's table: a row a patient, with the columns of `FEATURES` and ``diagnosis``."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    inputs = [
        [(float(row[name]) - usual) / spread for name, (usual, spread) in FEATURES.items()] for row in rows
    ]
    targets = [CLASSES.index(row["diagnosis"]) for row in rows]
    return Examples(torch.tensor(inputs, dtype=torch.float32), torch.tensor(targets))


def patients(path: str) -> Dataset:
    """A hospital's data: every fifth patient is kept to test its model on."""
    mine = read(Path(path))
    kept = torch.arange(len(mine.targets)) % 5 == 0
    train, test = (Examples(mine.inputs[part], mine.targets[part]) for part in (~kept, kept))
    return Dataset("patients", "table", train, test, CLASSES)


def public(path: str) -> Dataset:
    """The server's data: published patients, which say what a patient looks like; nobody trains on them."""
    shown = read(Path(path))
    return Dataset("patients", "table", shown, shown, CLASSES)
