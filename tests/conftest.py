import pytest
import torch
from hypothesis import HealthCheck, settings

from federations import dataset

# `ci` repeats itself run after run; `pytest --hypothesis-profile=deep` looks further
settings.register_profile("ci", derandomize=True, max_examples=25, deadline=None)
settings.register_profile(
    "deep", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")

# one thread: small tensors gain nothing from more, and bit-for-bit laws are stated at equal thread counts
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def blobs():
    """90 training examples of 3 classes in 6 dimensions, 30 to test on."""
    return dataset()
