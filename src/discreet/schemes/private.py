"""What differentially private schemes share: noise that the clients add themselves, and what a round gives out.

Each client adds a share of integer noise to integers modulo 2^b; the sum has the promised noise, and with a secure sum
nobody sees anything but it. A client that has no examples, or whose update is NaN or infinite, still sends its share,
around the zero vector: whether it could train shows neither in the sum's noise nor in who takes part.

What is promised: (epsilon, delta)-differential privacy of everything that is released, for one client's whole data, in
a run whose participants add their shares and whose sum is secure. In a simulation the noise is seeded: it measures
accuracy, and protects nobody. In a deployment it is the operating system's.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from discreet.cohort import Cohort
from discreet.errors import LocalProtocolError
from discreet.privacy.modulus import bits_for_sum
from discreet.privacy.promise import Promise
from discreet.privacy.releases import DiscreteGaussianSum, Noise, Released, Skellam
from discreet.privacy.words import words_of
from discreet.schemes.base import Contribution, Task
from discreet.training import Trained


def promise_of(task: Task) -> Promise:
    """The promise that a private scheme keeps.

    Raises:
        LocalProtocolError: the task has none.
    """
    if task.promise is None:
        raise LocalProtocolError("a differentially private scheme was given no promise to keep")
    return task.promise


def bits_for(task: Task, largest: float, norm: float) -> int:
    """Bits of the modulus in which the noisy sum does not wrap, however many shares of noise come together.

    Args:
        task: the task.
        largest: no client's coordinate exceeds it in absolute value.
        norm: one client's largest contribution in L2.
    """
    promise = promise_of(task)
    deviation = norm * promise.noise_multiplier * promise.most_noise
    return bits_for_sum(largest, promise.largest_cohort, deviation, promise.tail(deviation))


def noisy(task: Task, integers: Tensor, norm: float, trained: Trained, cohort: Cohort) -> Contribution:
    """Add each client's share of noise; where a client has no update to send, around zero.

    Args:
        task: the task.
        integers: shape (K, length), int64, each row of at most `norm` in L2.
        norm: one client's largest contribution.
        trained: what the clients' training gave.
        cohort: the clients.
    """
    promise = promise_of(task)
    usable = trained.accepted.cpu()
    participants = len(cohort) if cohort.participants is None else cohort.participants
    share = promise.share(norm * promise.noise_multiplier, participants)
    words = [words_of(task.hidden, cohort.round, int(client)) for client in cohort.ids]
    noise = np.stack([share.sample(source, integers.shape[1]) for source in words])
    noises = torch.from_numpy(noise)
    if task.adversary is not None:
        integers, noises = task.adversary.encoded(integers, noises, cohort)
    elements = torch.where(usable[:, None], integers, 0) + noises
    everyone = torch.ones_like(usable)
    return Contribution(elements, everyone, trained.losses, withheld=~usable)


def released(task: Task, norm: float, length: int) -> Released:
    """One noisy sum of vectors of integers.

    Args:
        task: the task.
        norm: one client's largest contribution in L2.
        length: of the vectors.
    """
    promise = promise_of(task)
    noise: Noise
    if promise.noise == "skellam":
        # by Cauchy and Schwarz, and for signs it is so: no vector of that norm has a larger sum of absolute values
        noise = Skellam(promise.noise_multiplier, math.sqrt(length) * norm, norm)
    else:
        # shares of the largest cohort are the smallest: the correction for a sum of discrete Gaussians is largest there
        noise = DiscreteGaussianSum(promise.noise_multiplier, norm, length, promise.largest_cohort)
    return Released(promise.sampling, noise)
