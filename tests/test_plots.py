"""Figures of runs, and the styles that tell them apart."""

import io
import itertools

import numpy as np
import pytest

from discreet.plots import DARK, LIGHT, line_style, plot_runs

# Machado, Oliveira and Fernandes (2009), severity 1: what linear RGB becomes for dichromats.
VISIONS = {
    "full colour vision": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear_rgb(colour: str) -> np.ndarray:
    encoded = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    weights = np.array([0.2126, 0.7152, 0.0722])
    darker, lighter = sorted(float(weights @ linear_rgb(colour)) for colour in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize(("colours", "page"), [(LIGHT, "#ffffff"), (DARK, "#14161a")])
def test_lines_stand_out_from_the_page(colours, page):
    assert min(contrast(colour, page) for colour in colours) >= 3


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_colours_differ_for_colour_blind_readers(colours, vision):
    seen = [lab(VISIONS[vision] @ linear_rgb(colour)) for colour in colours]
    assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2)) >= 20


def test_thirty_five_runs_are_told_apart_without_colour():
    assert len({(line_style(at).dash, line_style(at).marker) for at in range(35)}) == 35
    assert len({line_style(at) for at in range(210)}) == 210


def run(*accuracies: float) -> dict[str, np.ndarray]:
    rounds = np.arange(1, len(accuracies) + 1)
    return {"round": rounds, "accuracy": np.array(accuracies), "loss": 1 / rounds}


def test_a_panel_each_for_accuracy_and_loss():
    figure = plot_runs({"one": run(0.2, np.nan, 0.6), "two": run(0.3, 0.4)}, title="Two runs")
    accuracy, loss = figure.axes
    assert (accuracy.get_ylabel(), loss.get_ylabel()) == ("accuracy", "loss")
    np.testing.assert_array_equal(accuracy.lines[0].get_xydata(), [[1, 0.2], [3, 0.6]])
    np.testing.assert_array_equal(loss.lines[1].get_xydata(), [[1, 1], [2, 0.5]])
    assert [text.get_text() for text in figure.legends[0].texts] == ["one", "two"]


def test_no_accuracy_leaves_the_loss_alone():
    without = {"round": np.array([1, 2]), "loss": np.array([2.0, 1.0])}
    for values in (without, run(np.nan, np.nan)):
        (loss,) = plot_runs({"regression": values}).axes
        assert loss.get_ylabel() == "loss"


def test_names_are_not_formulas_and_none_is_hidden():
    figure = plot_runs({"_hidden": run(0.5), "$\\broken{$": run(0.5)}, title="$x")
    figure.savefig(io.BytesIO(), format="svg")
    assert len(figure.legends[0].texts) == 2


def test_no_runs_give_an_empty_panel():
    plot_runs({}).savefig(io.BytesIO(), format="png")
