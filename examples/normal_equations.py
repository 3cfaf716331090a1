"""Table 2 of the CGD paper, measured: who can solve for X^T X and X^T y of a linear regression, and after how many rounds.

    python examples/normal_equations.py [FOLDER]

Four trainings on scikit-learn's diabetes set, each audited from its first round on: gradient descent that sends models and
gradients, the same as a participant of a secure sum sees it, differentially private sums, and CGD with shared sums. Writes a
run folder for each and one plot, and prints one table.
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.figure import Figure

from discreet.audits import audit

ROUNDS = 300
COMMON = (
    "data.name=diabetes",
    "model.name=linear",
    "data.clients=10",
    "fraction=1.0",
    f"rounds={ROUNDS}",
    f"eval_every={ROUNDS}",
)
ONE_STEP = ("scheme.steps=1", "scheme.batch_size=0", "scheme.learning_rate=0.15")
TRAININGS = {
    "plain": (("scheme.name=fedsgd", "scheme.learning_rate=0.15"), "server"),
    "secure sum": (("scheme.name=fedavg", *ONE_STEP), "participant:0"),
    "DP, epsilon 8": (
        ("scheme.name=dp-fedavg", *ONE_STEP, "secure=masked", "scheme.clip_norm=1.0", "privacy.epsilon=8.0"),
        "server",
    ),
    "CGD": (
        (
            "scheme.name=cgd",
            "scheme.learning_rate=0.15",
            "scheme.initial_scale=0.1",
            "scheme.largest_gradient=16.0",
            "secure=additive",
        ),
        "server",
    ),
}
FIGURES = ("relative error of X^T X", "relative error of X^T y")


def main(folder: Path) -> None:
    figure = Figure(figsize=(10.4, 3.9), layout="constrained")
    panels = dict(zip(FIGURES, figure.subplots(1, 2), strict=True))
    print(f"{'training':<16}" + "".join(f"{name:>28}" for name in FIGURES) + f"{'X^T X to 1 % after':>22}")
    for name, (settings, party) in TRAININGS.items():
        made = audit(
            "digits-fedavg",
            settings=(*COMMON, *settings),
            attacks=["normal-equations"],
            party=party,
            out=folder / name.replace(" ", "-"),
        )
        series = made.record["audits"]["normal-equations"]["series"]["from the sums"]
        pairs = zip(series["rounds"], series[FIGURES[0]], strict=True)
        enough = next((str(round) for round, error in pairs if error <= 0.01), "never")
        print(f"{name:<16}" + "".join(f"{series[one][-1]:>28.3g}" for one in FIGURES) + f"{enough:>22}")
        for title, axes in panels.items():
            axes.loglog(series["rounds"], series[title], marker="o", markersize=3, label=name)
            axes.set_xlabel("rounds seen")
            axes.set_ylabel(title)
    panels[FIGURES[0]].legend(frameon=False)
    figure.savefig(folder / "normal-equations.png", dpi=150)
    print(f"wrote {folder / 'normal-equations.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "normal-equations"))
