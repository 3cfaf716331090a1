import itertools

import pytest

from discreet import machine
from discreet.privacy.noise import DiscreteGaussian
from discreet.privacy.words import SystemWords


@pytest.fixture
def ticking(monkeypatch):
    """A clock that goes on by a tenth of a second whenever it is looked at."""
    ticks = itertools.count(1)
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(ticks) / 10)


def test_masks_are_scaled_up_from_a_slice(ticking):
    slice_, seeds = machine.SLICE, machine.SEEDS
    # one try takes a tick
    assert machine.seconds_for_masks(slice_, 16, seeds - 1) == pytest.approx(0.1)
    assert machine.seconds_for_masks(4 * slice_, 16, 2 * seeds - 1) == pytest.approx(0.1 * 4 * 2)
    # what is less than a slice is done whole
    assert machine.seconds_for_masks(10, 16, 2) == pytest.approx(0.1)


def test_noise_is_a_table_and_draws(ticking):
    assert machine.seconds_for_noise(10, DiscreteGaussian(3.0)) == pytest.approx(0.1 + 0.1)
    assert machine.seconds_for_noise(3 * machine.SLICE, DiscreteGaussian(3.0)) == pytest.approx(0.1 + 0.3)


def test_the_work_that_is_measured_is_the_work(monkeypatch):
    done = []
    monkeypatch.setattr(machine, "SECONDS", 0.0)
    monkeypatch.setattr(machine, "add_masks", lambda *given: done.append(given))
    machine.seconds_for_masks(100, 13, 4)
    ((ring, total, plus, minus),) = done
    assert (ring.bits, total.shape, len(plus) + len(minus)) == (13, (100,), 5)


def test_the_shortest_of_several_tries_counts(monkeypatch):
    times = iter([0.0, 0.00, 0.09, 0.10, 0.12, 0.13, 0.20])
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(times))
    # three tries of 0.09, 0.02 and 0.07 seconds, the last of which ends after SECONDS
    assert machine._seconds(lambda: None) == pytest.approx(0.02)


def test_an_estimate_is_about_what_the_whole_takes():
    import time

    noise, parameters = DiscreteGaussian(50.0), 3 * machine.SLICE
    noise.table  # noqa: B018  made beforehand, for both
    estimate = machine.seconds_for_noise(parameters, noise)
    start = time.perf_counter()
    noise.sample(SystemWords(), parameters)
    # other programs may take the processor in between: no more than the order of magnitude is looked at
    assert estimate / 20 < time.perf_counter() - start < estimate * 20
