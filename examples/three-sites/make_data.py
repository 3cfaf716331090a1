"""Make three hospitals' tables and a public one, of scikit-learn's breast cancer data: python make_data.py FOLDER."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from hospital import CLASSES, FEATURES
from sklearn.datasets import load_breast_cancer

SHARES = {"north": 0.4, "south": 0.25, "west": 0.15, "public": 0.2}


def main(folder: Path) -> None:
    found = load_breast_cancer()
    names = [f"mean {name.replace('_', ' ')}" for name in FEATURES]
    columns = [list(found.feature_names).index(name) for name in names]
    order = np.random.default_rng(0).permutation(len(found.target))
    ends = np.round(np.cumsum(list(SHARES.values())) * len(order)).astype(int)
    for name, rows in zip(SHARES, np.split(order, ends[:-1]), strict=True):
        path = folder / name / "patients.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow([*FEATURES, "diagnosis"])
            for row in rows:
                table.writerow([*found.data[row, columns], CLASSES[1 - found.target[row]]])
        print(f"{path}: {len(rows)} patients")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
