from dataclasses import dataclass

import pytest
import torch

from discreet.errors import LocalProtocolError
from discreet.rounds import Ask, play_round
from discreet.schemes.base import Phase, Total
from discreet.secure.groups import Reals, Signs

FIRST = Phase("first", Reals(), 3)
SECOND = Phase("second", Signs(), 2, scope="column")


@dataclass(frozen=True)
class Recorder:
    """A scheme that writes down what it is asked; its state is a number, its payload ten times that."""

    asked: tuple[Phase, ...]
    task: object = "the task"

    def phases(self, task):
        assert task == self.task
        return self.asked

    def broadcast(self, task, state, round):
        assert task == self.task
        return 10 * state

    def update(self, task, state, totals, round):
        assert task == self.task
        return state, totals, round


def totals():
    return Total(torch.tensor([1.0, 2.0, 3.0]), 4), Total(torch.ones(5, 2, dtype=torch.int32), 4)


def finish(playing, total):
    with pytest.raises(StopIteration) as end:
        playing.send(total)
    return end.value.value


def test_each_phase_is_asked_for_in_order_with_what_was_received_before():
    one, two = totals()
    playing = play_round(Recorder((FIRST, SECOND)), "the task", 7, 3)
    ask = next(playing)
    assert isinstance(ask, Ask)
    assert (ask.round, ask.phase, ask.payload, ask.received) == (3, FIRST, 70, ())
    ask = playing.send(one)
    assert (ask.round, ask.phase, ask.payload, ask.received) == (3, SECOND, 70, (one,))
    assert finish(playing, two) == (7, (one, two), 3)


@pytest.mark.parametrize("empty", [0, 1])
def test_a_round_to_which_nobody_contributed_leaves_the_state(empty):
    answers = list(totals())
    answers[empty] = Total(torch.zeros_like(answers[empty].values), 0)
    playing = play_round(Recorder((FIRST, SECOND)), "the task", 7, 3)
    next(playing)
    playing.send(answers[0])
    assert finish(playing, answers[1]) == 7


@pytest.mark.parametrize("values", [torch.zeros(2), torch.zeros(4), torch.zeros(3, 1)])
def test_a_total_of_the_wrong_length_is_our_own_mistake(values):
    playing = play_round(Recorder((FIRST,)), "the task", 7, 3)
    next(playing)
    with pytest.raises(
        LocalProtocolError, match=f"'first' sums 3 elements, got a total of {values.shape[-1]}"
    ):
        playing.send(Total(values, 1))


def test_a_phase_in_which_nothing_is_sent_is_asked_for_too():
    playing = play_round(Recorder((Phase("train", Reals(), 0),)), "the task", 7, 3)
    assert next(playing).phase.length == 0
    assert finish(playing, Total(torch.zeros(0, dtype=torch.float64), 2))[0] == 7
