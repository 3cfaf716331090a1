"""Train federations on handwritten digits, print how good they are, and write a report."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp

from rich.console import Console
from rich.table import Table

import discreet
from discreet.config import load
from discreet.report import write_report


def main() -> None:
    folder = Path(mkdtemp(prefix="discreet-demo-"))
    table = Table(
        "scheme", "what it does", "accuracy", "bits a parameter", "MB sent", title="20 clients, 8x8 digits"
    )
    print("Training a federation of 20 clients on handwritten digits, four ways ...")
    for name in ("local", "fedavg", "signfed", "centralized"):
        source = "digits-signfed" if name == "signfed" else "digits-fedavg"
        experiment = load(source, [f"scheme.name={name}"])
        run = discreet.simulate(experiment, out=folder / name)
        table.add_row(
            name,
            discreet.SCHEMES[name].summary,
            f"{run.final['accuracy']:.1%}",
            f"{run.result['bits_per_parameter']:.3g}",
            f"{run.result['uplink_bytes'] / 1e6:.2f}",
        )
    Console().print(table)
    print(f"The report: {write_report([folder], folder / 'report.html')}")


if __name__ == "__main__":
    main()
