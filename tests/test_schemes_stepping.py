import pytest

from discreet.errors import ConfigError
from discreet.schemes import SCHEMES
from discreet.schemes.stepping import ServerStep


def test_a_step_is_constant_unless_a_half_life_is_given():
    assert [ServerStep(server_learning_rate=0.3).step_size(round) for round in (1, 2, 1000)] == [0.3] * 3


def test_a_step_is_halved_every_half_life():
    step = ServerStep(server_learning_rate=0.8, server_half_life=10)
    assert [step.step_size(round) for round in (1, 11, 21, 31)] == [0.8, 0.4, 0.2, 0.1]
    assert step.step_size(6) == pytest.approx(0.8 / 2**0.5, rel=1e-12)


@pytest.mark.parametrize("name", ["fedavg", "signfed", "dp-fedavg", "dp-signfed"])
def test_a_half_life_of_zero_is_refused(name):
    with pytest.raises(ConfigError, match=r"scheme\.server_half_life"):
        SCHEMES[name](server_half_life=0.0)
