"""Run folders made up for the report's tests."""

import json
import math
from pathlib import Path
from typing import Any

CONFIG = """\
rounds = {rounds}
fraction = 0.1
sampling = "fixed"
seed = {seed}
eval_every = 1
secure = false

[data]
name = "mnist"
partition = "iid"
clients = 1000

[model]
name = "mlp"
widths = [200]

[scheme]
name = "{scheme}"
learning_rate = {learning_rate}

[engine]
device = "cpu"
lanes = 10
"""


def write_run(
    folder: Path,
    *,
    rounds: int = 20,
    scheme: str = "fedavg",
    seed: int = 1,
    learning_rate: float = 0.215,
    top: float = 0.95,
    uplink: int = 63_604_000,
    accuracy: bool = True,
    finished: bool = True,
    **result: Any,
) -> Path:
    """A run that climbs from about 0.1 towards ``top``."""
    folder.mkdir(parents=True)
    config = CONFIG.format(rounds=rounds, seed=seed, scheme=scheme, learning_rate=learning_rate)
    (folder / "config.toml").write_text(config)
    lines = [_line(number, top, seed, uplink, accuracy) for number in range(1, rounds + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        key = max if accuracy else min
        best = key(lines, key=lambda line: line["accuracy" if accuracy else "loss"])
        scores = [
            {name: line.get(name) for name in ("round", "accuracy", "loss")} for line in (lines[-1], best)
        ]
        whole = {
            "scheme": scheme,
            "dataset": "mnist",
            "model": "mlp",
            "parameters": 159_010,
            "seed": seed,
            "rounds": rounds,
            "final": scores[0],
            "best": scores[1],
            "bits_per_parameter": uplink * 8 / 100 / 159_010,
            "uplink_bytes": uplink * rounds,
            "downlink_bytes": 63_604_000 * rounds,
            "seconds_per_round": 0.174,
            "peak_memory_bytes": 512_000_000,
            "privacy": None,
            "participants": 1000,
            "versions": {"discreet": "0.1.0", "torch": "2.13.0"},
        } | result
        (folder / "result.json").write_text(json.dumps(whole))
    return folder


def _line(number: int, top: float, seed: int, uplink: int, accuracy: bool) -> dict[str, Any]:
    wobble = 0.004 * math.sin(1.7 * number + seed)
    value = top - (top - 0.1) * math.exp(-0.22 * number) + wobble
    line = {
        "round": number,
        "participants": 100,
        "dropped": ["7"] if number == 2 else [],
        "empty": 0,
        "seconds": 0.17,
        "uplink_bytes": uplink,
        "downlink_bytes": 63_604_000,
        "train_loss": 1.9,
        "accuracy": value,
        "loss": 2.3 * (1.02 - value),
    }
    if not accuracy:
        del line["accuracy"]
    return line
