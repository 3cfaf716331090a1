"""What a site keeps of a run for itself, as its state has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from discreet.federation.parts import Begin
from discreet.federation.party import as_tensor
from discreet.federation.state import SiteState


@dataclass(frozen=True, eq=False)
class KeptModel:
    """What a site keeps of a run for itself.

    Attributes:
        vector: the model's parameters, shape (n,), or those of its part of one; None before the end, and where the
            scheme gives it no model.
        experiment: what ran, as TOML.
        facts: what a model card says: ``run`` (hexadecimal), ``sites``, ``rounds`` that were played, ``examples`` that
            the site holds; ``features`` of the first layer that it has a part of, if it is one.
    """

    vector: Tensor | None
    experiment: str
    facts: Mapping[str, Any]


def kept_model(state: bytes, number: int) -> KeptModel | None:
    """What the state of a site says of its last run; None if there was none.

    Args:
        state: of the site.
        number: of the site.

    Raises:
        LocalProtocolError: the state is damaged.
    """
    run = SiteState.from_bytes(state).run if state else None
    if run is None:
        return None
    facts = {
        "run": run.run.hex(),
        "sites": run.sites,
        "rounds": run.played,
        "examples": run.examples,
        "rehearsal": run.rehearse,
    }
    if run.begun and (columns := Begin.from_bytes(run.begun).columns):
        facts["features"] = list(columns[number % len(columns)].places)
    vector = as_tensor(run.model, torch.float32) if run.model else None
    return KeptModel(vector, run.experiment, facts)
