"""Asynchronous CGD: a run that was killed goes on bit for bit, and remembers no more than it needs."""

import json
import signal

import pytest
import torch

from discreet import config, simulate
from discreet.runs import CHECKPOINT

SETTINGS = {
    "rows": ["data.partition=iid", "data.clients=4"],
    "grid": ["data.rows=3", "data.columns=2"],
}
COMMON = ["scheme.max_delay=3", "model.widths=[4]", "eval_every=1", "engine.workers=1"]


def scores(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds"), line.pop("evaluation_seconds", None)
    return lines, (folder / CHECKPOINT).read_bytes()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_killed_run_goes_on_bit_for_bit(command, tmp_path, name):
    chosen = [part for one in (*COMMON, *SETTINGS[name], "rounds=40") for part in ("--set", one)]
    assert command.run("run", "digits-cgd", *chosen, "--out", "whole", "--quiet", cwd=tmp_path).code == 0
    killed = command.start("run", "digits-cgd", *chosen, "--out", "run", "--quiet", cwd=tmp_path)
    killed.wait_for(tmp_path / "run" / "metrics.jsonl", lines=6)
    killed.signal(signal.SIGKILL)
    assert killed.end().code == -signal.SIGKILL
    done = (tmp_path / "run" / "metrics.jsonl").read_bytes().count(b"\n")
    assert 6 <= done < 40  # it was in the middle, and further on than participants lag behind
    again = command.run("run", "digits-cgd", *chosen, "--out", "run", "--resume", "--quiet", cwd=tmp_path)
    assert again.code == 0, again.err
    assert scores(tmp_path / "run") == scores(tmp_path / "whole")


@pytest.mark.parametrize("name", SETTINGS)
def test_delays_are_felt_and_the_past_is_bounded(name):
    def run(delay, rounds=12):
        chosen = [*COMMON, *SETTINGS[name], f"rounds={rounds}", f"scheme.max_delay={delay}"]
        return simulate(config.load("digits-cgd", chosen)).checkpoint.tensors

    for delay in (0, 2, 5):
        tensors = run(delay)
        # with the displacement of now: delay + 1, whatever the number of rounds
        assert tensors["state.history"].shape == (delay, len(tensors["state.displacement"]))
    late, earlier = run(5), [run(5, rounds=rounds)["state.displacement"] for rounds in (11, 10, 9, 8, 7)]
    assert torch.equal(late["state.history"], torch.stack(earlier))
    assert not torch.allclose(late["state.displacement"], run(0)["state.displacement"], atol=1e-4)
