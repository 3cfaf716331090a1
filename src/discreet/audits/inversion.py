"""Audit of gradient inversion: which images can be got back from updates, one by one or added up?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from discreet.adversaries.inference import inversion, leaks
from discreet.adversaries.inference.inversion import Picture
from discreet.adversaries.inference.leaks import Leak
from discreet.adversaries.inference.likeness import psnr, ssim
from discreet.audits.case import Audit, Case, Finding, Illustrated
from discreet.audits.perturbation import NOTHING
from discreet.cohort import Examples
from discreet.losses import cross_entropy, quadratic_cross_entropy, squared_error
from discreet.optimizers import LocalTraining
from discreet.preparation import Federation
from discreet.sampling import attend
from discreet.secure.ring import Ring

TARGETS, MIXTURES, MATCHED = 2, 64, 4
"""Single updates that are attacked; images that the first layer's rows may give of one, and that are matched to one."""

RECOGNISED = 20.0
"""PSNR in dB above which an image counts as found."""

FEW = 1000
"""With fewer examples asked about, one update is attacked and few steps are taken."""

FIRST, MATCHING, BOTH = "first layer's rows", "matching gradients", "the better of both"

LARGEST = 3_000_000
"""Models of more parameters are not matched: it takes hours."""


@dataclass(frozen=True, eq=False)
class Attempt:
    """What an attack made of a gradient, judged against the examples that went into it.

    Attributes:
        attack: what was done.
        found: the image that is most like an example, shape (channels, height, width).
        wanted: that example.
        psnr, ssim: how like they are.
        share: how many examples an image was found of, as a share of those that went into the gradient.
    """

    attack: str
    found: Tensor
    wanted: Tensor
    psnr: float
    ssim: float
    share: float


FIGURES: Mapping[str, Callable[[Attempt], float]] = {
    "PSNR, dB": lambda one: one.psnr,
    "SSIM": lambda one: one.ssim,
    f"share of examples above {RECOGNISED:g} dB": lambda one: one.share,
}
"""What is told of an attempt."""


def measure(case: Case) -> Illustrated:
    """Both attacks: on single updates where they are seen, on the sum, and on one example's gradient in the clear."""
    bench = _Bench(case)
    scheme, task = case.federation.scheme, case.federation.task
    singles, sums = leaks.singles(scheme, task, case.view), leaks.sums(scheme, task, case.view)
    first = [leak for leak in singles if leak.round == case.round][: bench.targets]
    # what the attacks can do at all: one example's gradient, at a model that is known
    point = case.truth if case.truth is not None else (*first, *sums)[0].point if (first or sums) else None
    if point is None:
        return Illustrated([])
    known = [bench.attacked(*bench.planted(point.double(), number)) for number in range(bench.targets)]
    found: list[Finding] = []
    shown: list[tuple[str, Sequence[Attempt]]] = [("one example's gradient, in the clear", known[0])]
    for name, chosen, promise in (
        ("an update", first, NOTHING),
        ("the sum", sums[:1], _promised(case)),
    ):
        if not chosen:
            continue
        truths, counts = [bench.examples(leak) for leak in chosen], [bench.count(leak) for leak in chosen]
        triples = list(zip(chosen, truths, counts, strict=True))
        attempts = [bench.attacked(*triple) for triple in triples]
        blind = [bench.blind(truth, count) for _, truth, count in triples]
        examples = sum(counts) / len(counts)
        title = f"{name} of {examples:.0f} example{'s' if examples > 1 else ''}"
        found += _findings(title, attempts, blind, known, promise)
        shown.append((title, attempts[0]))
    return Illustrated(found, {"images": _drawn(shown, bench.mean)})


def _findings(
    title: str,
    attempts: Sequence[Sequence[Attempt]],
    blind: Sequence[Attempt],
    known: Sequence[Sequence[Attempt]],
    promise: str,
) -> list[Finding]:
    """Means over the gradients that were attacked."""
    found = []
    for attack in [one.attack for one in attempts[0]]:
        tried, could = (
            [one for each in every for one in each if one.attack == attack] for every in (attempts, known)
        )
        for figure, read in FIGURES.items():
            measured, chance, unprotected = (
                float(np.mean([read(one) for one in some])) for some in (tried, blind, could)
            )
            found.append(Finding(f"{title}: {attack}", figure, measured, chance, unprotected, promise))
    return found


class _Bench:
    """Attacks gradients, and judges what comes out by the examples that went in."""

    def __init__(self, case: Case) -> None:
        self.case, self.federation = case, case.federation
        self.learner = case.federation.task.learner
        quick = case.most < FEW
        self.targets = 1 if quick else TARGETS
        self.steps = inversion.STEPS // 4 if quick else inversion.STEPS

    @cached_property
    def picture(self) -> Picture:
        """What test images show of all images."""
        low, high = self.public.aminmax()
        return Picture(tuple(self.federation.train.inputs.shape[1:]), float(low), float(high))

    @cached_property
    def public(self) -> Tensor:
        """Test images."""
        return _images(self.case.unseen)

    @cached_property
    def mean(self) -> Tensor:
        """Their mean: what anybody may guess."""
        return self.public.mean(0)

    def count(self, leak: Leak) -> int:
        """How many examples went into a gradient."""
        sizes = [len(self._held(client)) for client in self._clients(leak)]
        return sum(worked_on(self.federation.scheme, size) for size in sizes)

    def examples(self, leak: Leak) -> Tensor:
        """Images that may have gone into a gradient: all that its clients hold, shape (N, *shape)."""
        places = np.concatenate([self._held(client) for client in self._clients(leak)])
        train = self.federation.train
        where = torch.from_numpy(places.astype(np.int64)).to(train.targets.device)
        return _images(Examples(train.inputs[where], train.targets[where]))

    def planted(self, point: Tensor, number: int) -> tuple[Leak, Tensor, int]:
        """One training example's gradient at a point."""
        place = torch.tensor([number % len(self.federation.train)], device=point.device)
        inputs, targets = self.federation.train.gather(place)
        free = point.float().requires_grad_()
        with torch.enable_grad():
            loss = self.learner.loss(self.learner.network.apply(free, inputs), targets).sum()
            (gradient,) = torch.autograd.grad(loss, free)
        return Leak(0, None, point, gradient.double()), inputs.double().cpu(), 1

    def attacked(self, leak: Leak, truth: Tensor, count: int) -> list[Attempt]:
        """Every attack that the model allows."""
        network, gradient = self.learner.network, leak.gradient
        made = {FIRST: inversion.from_first_layer(network, gradient, self.picture, min(count, MIXTURES))}
        if self._matchable:
            labels = inversion.labels_from(network, gradient, min(count, MATCHED))
            made[MATCHING] = inversion.by_matching(
                network,
                self.learner.loss,
                leak.point,
                gradient,
                self.picture,
                labels,
                self.federation.task.common,
                steps=self.steps,
            )
        tried = [self._judged(attack, one, truth, count) for attack, one in made.items() if one is not None]
        if len(tried) > 1:
            best = max(tried, key=lambda one: one.psnr)
            share = max(one.share for one in tried)
            tried.append(Attempt(BOTH, best.found, best.wanted, best.psnr, best.ssim, share))
        return tried

    def blind(self, truth: Tensor, count: int) -> Attempt:
        """The mean of test images, or as many of them as an attack may give images: what it takes no attack for."""
        guesses = torch.cat([self.mean[None], self.public[: min(count, MIXTURES)]])
        return self._judged("test images", guesses, truth, count)

    @property
    def _matchable(self) -> bool:
        known = self.learner.loss in (cross_entropy, squared_error, quadratic_cross_entropy)
        return known and self.federation.train.targets.dim() == 1 and self.learner.network.count <= LARGEST

    def _judged(self, attack: str, images: Tensor, truth: Tensor, count: int) -> Attempt:
        """The best of some images, against the example that it is most like."""
        images, truth = images.cpu().double(), truth.cpu()
        distances = torch.cdist(images.flatten(1).float(), truth.flatten(1).float())
        place = int(distances.argmin())
        found, wanted = images[place // len(truth)], truth[place % len(truth)]
        span = self.picture.span
        limit = span * 10 ** (-RECOGNISED / 20) * truth[0].numel() ** 0.5
        return Attempt(
            attack,
            found,
            wanted,
            float(psnr(found, wanted, span)),
            float(ssim(found[None], wanted[None], span)),
            min(1.0, int((distances.amin(0) < limit).sum()) / count),
        )

    def _clients(self, leak: Leak) -> list[int]:
        if leak.client is not None:
            return [leak.client]
        sending = attend(self.federation.experiment, self.federation.partition.clients, leak.round).sending
        return [client for client in sending.tolist() if len(self._held(client))]

    def _held(self, client: int) -> NDArray[np.int64]:
        return np.asarray(self.federation.partition.indices(client), dtype=np.int64)


def worked_on(scheme: object, size: int) -> int:
    """How many of a client's examples go into what it sends in a round."""
    batch = min(getattr(scheme, "batch_size", 0) or size, size)
    if isinstance(scheme, LocalTraining):
        return min(size, scheme.steps_for(size, batch) * batch)
    return batch


def _promised(case: Case) -> str:
    """What is promised about a sum."""
    if case.federation.task.promise is not None:
        return "all of one client's data but (epsilon, delta)"
    phase = case.federation.scheme.phases(case.federation.task)[-1]
    if case.federation.experiment.secure in ("masked", "additive") and isinstance(phase.group, Ring):
        return "nothing about the sum; single updates"
    return NOTHING


def _images(examples: Examples) -> Tensor:
    inputs, _ = examples.gather(torch.arange(len(examples), device=examples.targets.device))
    return inputs.double().cpu()


def _drawn(shown: Sequence[tuple[str, Sequence[Attempt]]], mean: Tensor) -> Figure:
    """Pairs of images: for each gradient, what each attack found above the example that it is most like."""
    columns = max(len([one for one in tried if one.attack != BOTH]) for _, tried in shown) or 1
    figure = Figure(figsize=(2.2 * (2 * columns + 1), 2.1 * len(shown)), layout="constrained")
    grid = figure.subplots(len(shown), 2 * columns + 1, squeeze=False)
    for row, (title, tried) in zip(grid, shown, strict=True):
        for axes in row:
            axes.set_axis_off()
        for place, one in enumerate(one for one in tried if one.attack != BOTH):
            _image(row[2 * place], one.wanted, f"{title}\nthe example")
            _image(row[2 * place + 1], one.found, f"{one.attack}\n{one.psnr:.1f} dB")
        _image(row[-1], mean, "by chance:\nthe mean image")
    return figure


def _image(axes: Axes, image: Tensor, title: str) -> None:
    axes.set_title(title, fontsize=7)
    shown = image.movedim(0, -1).numpy()
    axes.imshow(shown if shown.shape[-1] == 3 else shown[..., 0], cmap="gray")


def _fits(federation: Federation) -> str | None:
    if federation.train.inputs.dim() != 4:
        return "it is about images"
    if not leaks.readable(federation.scheme):
        return "nobody receives gradients"
    if federation.partition.column_count > 1:
        return "participants hold some of the columns: see colluders"
    return None if len(federation.test) else "there are no test images to guess by"


AUDIT = Audit(
    "which images can be got back from updates, and from their sum",
    ("server", "participant"),
    2,
    measure,
    _fits,
)
