import json
import os
import sys
import threading
import warnings
from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image

from discreet import simulate
from discreet.cohort import Examples
from discreet.config import Data, Experiment, Model, from_table, load, to_table
from discreet.data import scattering
from discreet.data.dataset import Dataset
from discreet.data.scattering import Scattering, feature_count, scattered
from discreet.data.shapes import shape_of
from discreet.data.sources import load as load_set
from discreet.errors import ConfigError, DataError, MissingExtra
from discreet.schemes import SCHEMES

needs_kymatio = pytest.mark.skipif(
    find_spec("kymatio") is None, reason="needs the extra scattering (kymatio)"
)

GREY = (1, 8, 8)

transform_of = cache(Scattering.of)  # it takes some 0.2 s to make


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("DISCREET_CACHE", str(folder))
    monkeypatch.setattr(scattering, "_REFERENCES", 16)  # quicker, and as good where statistics do not matter
    return folder


def images(count, shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def dataset(shape=GREY, train=5, test=3, name="mine", seed=0):
    both = torch.from_numpy(images(train + test, shape, seed))
    labels = torch.arange(train + test) % 2
    return Dataset(
        name,
        "image",
        Examples(both[:train], labels[:train]),
        Examples(both[train:], labels[train:]),
        ("a", "b"),
    )


@pytest.fixture
def counted(monkeypatch):
    """How often features were computed."""
    calls = []
    whole = scattering._features
    monkeypatch.setattr(scattering, "_features", lambda *args: calls.append(1) or whole(*args))
    return calls


# ---- the transform


def morlet(size, scale, angle, samples=4):
    """A Morlet wavelet in the frequencies of a periodic image, from its formula in space, summed over the periods."""
    sigma, xi, slant = 0.8 * 2**scale, 3 / 4 * np.pi / 2**scale, 0.5
    along = np.arange(-samples * size, samples * size)
    x, y = np.meshgrid(along, along, indexing="ij")
    forth = x * np.cos(angle) + y * np.sin(angle)
    across = -x * np.sin(angle) + y * np.cos(angle)
    envelope = np.exp(-(forth**2 + slant**2 * across**2) / (2 * sigma**2))
    wave = envelope * np.exp(1j * xi * forth)
    wave -= envelope * (wave.sum() / envelope.sum())
    wave /= 2 * np.pi * sigma**2 / slant
    folded = wave.reshape(2 * samples, size, 2 * samples, size).sum((0, 2))
    return np.fft.fft2(folded)


@needs_kymatio
@pytest.mark.parametrize("scale", [0, 1])
@pytest.mark.parametrize("angle", [0, 3, 6])
def test_first_order_is_the_averaged_modulus_of_a_wavelet(scale, angle):
    # of a plane wave the modulus is the same everywhere, but for a ripple of twice its frequency, of which averaging
    # over 1.6 pixels each way leaves 0.2 %; the mirrored edges of the image are 20 pixels or more from its middle
    size, turns = 48, 2 * np.pi / 8
    row, column = np.mgrid[:size, :size]
    wave = np.cos(turns * row + turns * column).astype(np.float32)
    maps = scattering._transform([size, size], 1)(torch.from_numpy(wave)[None])[0]
    theta = (8 - 8 // 2 - 1 - angle) * np.pi / 8
    modulus = np.abs(np.fft.ifft2(np.fft.fft2(wave) * morlet(size, scale, theta)))
    middle = maps[1 + 8 * scale + angle, 5:7, 5:7].numpy()
    expected = np.full((2, 2), modulus.mean())
    np.testing.assert_allclose(middle, expected, rtol=2e-2, atol=2e-3)


@needs_kymatio
def test_a_vector_has_mean_0_and_variance_1_and_hangs_on_its_own_image_alone():
    batch = torch.from_numpy(images(6, (3, 32, 32)))
    transform = transform_of((3, 32, 32))
    vectors = transform(batch)
    assert vectors.shape == (6, 1840) and vectors.dtype == torch.float32
    torch.testing.assert_close(vectors.mean(1), torch.zeros(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(vectors.square().mean(1), torch.ones(6))
    torch.testing.assert_close(transform(batch[2:3])[0], vectors[2], atol=1e-4, rtol=0)
    torch.testing.assert_close(transform(batch.flip(0)).flip(0), vectors, atol=1e-4, rtol=0)


@needs_kymatio
def test_bytes_and_floats_from_0_to_1_are_the_same_images():
    batch = torch.from_numpy(images(3, GREY))
    transform = transform_of(GREY)
    torch.testing.assert_close(transform(batch), transform(batch.to(torch.float32) / 255))


@needs_kymatio
def test_grey_in_three_channels_is_grey_in_one_with_colours_of_no_contrast():
    grey = torch.from_numpy(images(2, (1, 32, 32)))
    one, three = transform_of((1, 32, 32)), transform_of((3, 32, 32))
    narrow, wide = one(grey), three(grey.expand(2, 3, 32, 32))
    luminance = wide[:, :1296]
    # up to the scaling of each vector by its own mean and deviation
    centred = luminance - luminance.mean(1, keepdim=True)
    torch.testing.assert_close(
        centred / centred.square().mean(1, keepdim=True).sqrt(), narrow, atol=1e-4, rtol=0
    )
    colours = wide[:, 1296:].reshape(2, 2, 17, 16)
    torch.testing.assert_close(colours[:, 0], colours[:, 1], atol=1e-4, rtol=0)


@needs_kymatio
def test_a_small_shift_moves_features_less_than_pixels():
    rng = np.random.default_rng(3)
    smooth = np.repeat(np.repeat(rng.integers(0, 256, (8, 1, 20, 20)), 2, 2), 2, 3).astype(np.uint8)
    here, there = torch.from_numpy(smooth[..., 4:36, 4:36]), torch.from_numpy(smooth[..., 5:37, 4:36])
    transform = transform_of((1, 32, 32))

    def likeness(a, b):
        a, b = a.flatten(1).float(), b.flatten(1).float()
        a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
        return torch.nn.functional.cosine_similarity(a, b).mean()

    assert likeness(transform(here), transform(there)) > 0.85
    assert likeness(here, there) < 0.6


@needs_kymatio
def test_noise_like_that_of_the_statistics_has_features_around_zero_before_they_are_scaled(monkeypatch):
    monkeypatch.setattr(scattering, "_REFERENCES", 128)
    transform = Scattering.of((1, 32, 32))
    other = np.random.default_rng(5)
    white = np.fft.fft2(other.standard_normal((64, 32, 32)))
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(32), np.fft.fftfreq(32)))
    frequency[0, 0] = np.inf
    noise = np.fft.ifft2(white / frequency).real
    noise *= np.geomspace(1 / 64, 1 / 2, 64)[:, None, None] / noise.std()
    maps = transform.luminance(torch.from_numpy(noise.astype(np.float32)))
    logs = (maps.clamp_min(0).unflatten(-1, (4, 2)).unflatten(-3, (4, 2)).mean((-1, -3)) + 1e-3).log()[:, 1:]
    # 64 draws of contrasts whose spread is that of the statistics: the mean of a map is within 0.2 deviations
    scaled = (logs - transform.mean[1:]) / transform.deviation[1:]
    assert scaled.mean((0, 2, 3)).abs().max() < 0.2
    assert ((scaled.std((0, 2, 3)) > 0.8) & (scaled.std((0, 2, 3)) < 1.2)).all()


@needs_kymatio
@pytest.mark.parametrize(
    ("shape", "features"),
    [
        ((3, 32, 32), 16 * (81 + 2 * 17)),
        ((1, 28, 28), 16 * 81),
        ((1, 8, 8), 4 * 81),
        ((1, 4, 4), 81),
        ((3, 9, 21), 2 * 4 * 115),
        ((1, 30, 17), 16 * 81),
    ],
)
def test_how_many_features_there_are(shape, features):
    assert feature_count(shape) == features
    assert transform_of(shape)(torch.from_numpy(images(2, shape))).shape == (2, features)


@needs_kymatio
def test_a_flat_image_has_finite_features():
    flat = torch.zeros(2, *GREY, dtype=torch.uint8)
    flat[1] = 255
    assert transform_of(GREY)(flat).isfinite().all()


def test_colours_are_a_rotation():
    turn = scattering._COLOURS
    np.testing.assert_allclose(turn @ turn.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(turn @ np.ones(3), [np.sqrt(3), 0, 0], atol=1e-12)


# ---- a data set


@needs_kymatio
def test_a_data_set_becomes_a_table_of_what_the_transform_gives():
    data = dataset(train=70, test=0)  # more than one batch, and an empty half
    found = scattered(data)
    assert (found.kind, found.shape, found.classes) == ("table", (feature_count(GREY),), ("a", "b"))
    assert found.train.inputs.dtype == torch.float32 and len(found.test) == 0
    torch.testing.assert_close(
        found.train.inputs, transform_of(GREY)(data.train.inputs), atol=5e-3, rtol=1e-3
    )
    assert torch.equal(found.train.targets, data.train.targets)


@needs_kymatio
def test_the_second_time_features_come_from_the_cache(folder, counted):
    first, second = scattered(dataset()), scattered(dataset())
    assert counted == [1]
    assert torch.equal(first.train.inputs, second.train.inputs)
    assert torch.equal(first.test.inputs, second.test.inputs)
    (file,) = folder.iterdir()
    assert file.name.startswith("mine-scattering-")


@needs_kymatio
def test_the_same_images_computed_anew_give_the_same_bits(folder, monkeypatch):
    first = scattered(dataset(train=40))
    monkeypatch.setenv("DISCREET_CACHE", str(folder.parent / "another"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    second = scattered(dataset(train=40))
    assert torch.equal(first.train.inputs, second.train.inputs)


@needs_kymatio
def test_other_images_labels_or_versions_are_computed_anew(counted, monkeypatch):
    scattered(dataset())
    scattered(dataset(seed=1))
    scattered(dataset(train=4, test=4))  # the same images, divided otherwise
    other = dataset()
    other.train.targets[0] = 1
    scattered(other)
    monkeypatch.setattr(scattering, "VERSION", scattering.VERSION + 1)
    scattered(dataset())
    assert len(counted) == 5


@needs_kymatio
@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_cache_is_made_again(folder, counted, damage):
    first = scattered(dataset())
    (file,) = folder.iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes({"cut": content[: len(content) // 2], "changed": content, "empty": b""}[damage])
    again = scattered(dataset())
    assert len(counted) == 2 and torch.equal(first.train.inputs, again.train.inputs)
    scattered(dataset())
    assert len(counted) == 2


@needs_kymatio
def test_progress_counts_images_of_both_halves():
    seen = []
    scattered(dataset(train=1100, test=10), lambda *step: seen.append(step))
    assert seen[0] == (0, 1110, "scattering mine") and seen[-1] == (1110, 1110, "scattering mine")
    assert len(seen) > 3 and sorted(done for done, _, _ in seen) == [done for done, _, _ in seen]


@needs_kymatio
def test_an_interrupt_ends_it_and_leaves_no_cache(folder):
    threads = torch.get_num_threads()

    def interrupt(done, total, what):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scattered(dataset(train=2000), interrupt)
    assert not folder.exists()
    assert torch.get_num_threads() == threads
    assert not [one for one in threading.enumerate() if one.name.startswith("discreet")]


@needs_kymatio
@pytest.mark.parametrize("shape", [(2, 16, 16), (1, 3, 16), (16, 16)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(DataError, match="1 or 3 channels of at least 4 pixels each way"):
        scattered(dataset(shape))


def test_what_has_no_images_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"data.features = 'scattering': expected none for data.name = 'imdb'"
    ):
        load_set("imdb", features="scattering")
    with pytest.raises(ConfigError, match="'none' or 'scattering'"):
        Data(features="wavelets")
    with pytest.raises(ConfigError, match="none or scattering"):
        load_set("digits", features="wavelets")


def test_without_kymatio_the_extra_is_named_before_anything_is_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "kymatio", None)
    with pytest.raises(MissingExtra, match=r"pip install 'discreet\[scattering\]'") as raised:
        load_set("cifar10", data_dir=None, features="scattering")
    assert "\n" not in str(raised.value)


@needs_kymatio
def test_kymatio_leaves_the_filters_of_warnings_alone(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "kymatio"]:
        monkeypatch.delitem(sys.modules, name)
    before = list(warnings.filters)
    scattering._transform([8, 8], 1)
    assert warnings.filters == before and "kymatio" in sys.modules


# ---- experiments


def test_features_are_part_of_an_experiment():
    chosen = load("cifar10-cgd")
    assert chosen.data.features == "scattering" and from_table(to_table(chosen)) == chosen
    # runs of before there were any can be resumed
    assert "features" not in to_table(Experiment())["data"]


def test_a_plan_knows_the_shape_without_reading_anything():
    found = shape_of("cifar10", max_tokens=1, vocabulary=2, features="scattering")
    assert (found.inputs, found.outputs) == ((1840,), 10)
    assert shape_of("images", max_tokens=1, vocabulary=2, features="scattering") is None


@needs_kymatio
def test_images_that_are_given_as_an_object_become_features_too():
    chosen = Experiment(
        rounds=1, data=Data(features="scattering", clients=2), model=Model(options={"widths": [4]})
    )
    run = simulate(chosen, data=dataset(train=8, test=4))
    # 81 maps of 2 x 2 cells, 4 hidden units, 2 classes
    assert run.result["parameters"] == (4 * 81 + 1) * 4 + (4 + 1) * 2


@needs_kymatio
def test_cgd_by_rows_and_columns_on_a_folder_of_images(inside, tmp_path):
    rng = np.random.default_rng(0)
    for label, step in (("across", (1, 2)), ("along", (2, 1))):
        (tmp_path / "shapes" / label).mkdir(parents=True)
        for number in range(30):
            stripes = np.repeat(
                np.repeat(rng.integers(0, 256, (16 // step[0], 16 // step[1])), step[0], 0), step[1], 1
            )
            Image.fromarray(stripes.astype(np.uint8)).save(tmp_path / "shapes" / label / f"{number}.png")
    (tmp_path / "own.toml").write_text(
        'rounds = 20\neval_every = 20\n[data]\nname = "images"\npath = "shapes"\nfeatures = "scattering"\n'
        'partition = "grid"\nrows = 3\ncolumns = 2\n[model]\nname = "mlp"\nwidths = [8]\n'
        '[scheme]\nname = "cgd"\noptimizer = "adam"\nlearning_rate = 0.01\n'
    )
    ended = inside("run", "own.toml", "--out", "out", "--quiet", cwd=tmp_path)
    assert ended.code == 0, ended.err
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    # 12 test images: guessing has 9 of them right or more with a chance of 7 %, all 12 with one of 0.02 %
    assert result["worst"]["accuracy"] > 0.9 and result["participants"] == 6


# ---- a feature file of one's own


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
def test_a_feature_file_is_split_by_rows_and_columns(tmp_path, kind):
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = (np.eye(3)[y] @ rng.normal(size=(3, 7)) * 3 + rng.normal(size=(60, 7))).astype(np.float32)
    path = tmp_path / f"features.{kind}"
    if kind == "npz":
        np.savez(path, x=x, y=y)
    else:
        import pyarrow as pa
        from pyarrow import csv, parquet

        columns = {f"f{number}": x[:, number] for number in range(7)} | {"y": y}
        (csv.write_csv if kind == "csv" else parquet.write_table)(pa.table(columns), path)
    data = Data(
        name="table",
        path=str(path),
        target=None if kind == "npz" else "y",
        standardise=False,
        partition="grid",
        rows=4,
        columns=3,
    )
    scheme = SCHEMES["cgd"](optimizer="adam", learning_rate=0.03)
    run = simulate(
        Experiment(rounds=40, eval_every=40, data=data, model=Model(options={"widths": [8]}), scheme=scheme)
    )
    # three groups 4 or more deviations apart: guessing has 0.33
    assert run.result["participants"] == 12 and run.result["worst"]["accuracy"] > 0.8
