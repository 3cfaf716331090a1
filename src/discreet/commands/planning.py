"""The command that works out privacy and bandwidth before anything is trained."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Annotated

import typer

from discreet import flags
from discreet.errors import ConfigError
from discreet.terminal import print_columns


def plan(
    experiment: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE.toml|PRESET]", help="An experiment; options take the place of what it says."
        ),
    ] = None,
    settings: flags.Changes = None,
    clients: Annotated[int | None, typer.Option(help="How many clients there are.")] = None,
    fraction: Annotated[float | None, typer.Option(help="Share of them in a round.")] = None,
    cohort: Annotated[int | None, typer.Option(help="How many in a round, instead of the fraction.")] = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds.")] = None,
    parameters: Annotated[int | None, typer.Option(help="Parameters of the model.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="A model, instead of its parameters.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="NAME", help="The data set that the model is for. [default: digits]")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="The privacy budget.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise, instead of the budget.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="The chance left out of the promise. [default: 1e-5]")
    ] = None,
    sampling: Annotated[
        str | None,
        typer.Option(metavar="poisson|fixed", help="How clients are drawn. [default: poisson]"),
    ] = None,
    accountant: Annotated[
        str | None, typer.Option(metavar="rdp|pld|best", help="Whose epsilon is promised. [default: rdp]")
    ] = None,
    dropout: Annotated[
        float | None, typer.Option(help="Share of a round that may drop out. [default: 0]")
    ] = None,
    dishonest: Annotated[
        int | None, typer.Option(help="Clients a round taken to add no noise. [default: 0]")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--timings/--no-timings", help="Measure what masks and noise take here.")
    ] = True,
    data_dir: flags.DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Work out privacy and bandwidth before anything is trained: of an experiment, or from options alone."""
    from discreet import config, forecast

    if settings and experiment is None:
        raise ConfigError("--set", settings[0], "an experiment beside it, whose keys it changes")
    wishes = {
        "clients": clients,
        "fraction": fraction,
        "cohort": cohort,
        "rounds": rounds,
        "parameters": parameters,
        "model": model,
        "data": data,
        "epsilon": epsilon,
        "noise_multiplier": noise_multiplier,
        "delta": delta,
        "sampling": sampling,
        "accountant": accountant,
        "dropout": dropout,
        "dishonest": dishonest,
    }
    chosen = None if experiment is None else config.load(experiment, settings or ())
    with redirect_stdout(sys.stderr):  # what a user's own model prints is no part of the plan
        try:
            made = forecast.plan(chosen, data_dir=data_dir, **wishes)
        except ConfigError as error:
            raise _about_an_option(error, wishes) from None
        if measure and isinstance(made, forecast.Plan):
            made = replace(made, timings=forecast.timings(made))
    if as_json:
        print(json.dumps(made.to_dict(), indent=1, allow_nan=False))
        return
    print_columns(made.rows())
    print()
    print_columns(made.traffic_rows())
    print(f"\n{made.statement}")
    for warning in made.warnings if isinstance(made, forecast.Plan) else ():
        print(f"Warning: {warning}")


def _about_an_option(error: ConfigError, options: Iterable[str]) -> ConfigError:
    """The same error with the option's name as it is written, where it is about an option."""
    if error.key not in options:
        return error
    option = "--" + error.key.replace("_", "-")
    return ConfigError(option, error.value, error.expected)
