"""Train federations on handwritten digits, print how good they are, and write a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

from rich.console import Console
from rich.table import Table

import discreet
from discreet.config import load
from discreet.report import write_report


def main() -> None:
    folder = Path(mkdtemp(prefix="discreet-demo-"))
    average = load("digits-fedavg")
    experiments = {
        "local": replace(average, scheme=discreet.Local(steps=10, learning_rate=0.1)),
        "fedavg": average,
        "signfed": load("digits-signfed"),
        "dp-signfed": load("digits-dp-signfed"),
        "centralized": replace(average, scheme=discreet.Centralized(epochs=1, learning_rate=0.1)),
    }
    print(
        "Training federations on handwritten digits: 20 clients, and 200 small ones for the private scheme ..."
    )
    table = Table("scheme", "what it does", "accuracy", "bits a parameter", "epsilon", title="8x8 digits")
    for name, experiment in experiments.items():
        run = discreet.simulate(experiment, out=folder / name)
        table.add_row(
            name,
            discreet.SCHEMES[name].summary,
            f"{run.final['accuracy']:.1%}",
            f"{run.result['bits_per_parameter']:.3g}",
            f"{run.result['privacy']['epsilon']:.2g}" if run.result["privacy"] else "-",
        )
    Console().print(table)
    print(f"The report, a page to open in a browser: {write_report([folder], folder / 'report.html')}")


if __name__ == "__main__":
    main()
