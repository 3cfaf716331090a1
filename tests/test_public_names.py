import inspect
import types

import pytest

import discreet


def test_all_is_what_is_exported():
    exported = {
        name
        for name, value in vars(discreet).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert exported == set(discreet.__all__)
    assert len(discreet.__all__) == len(set(discreet.__all__))
    assert {"SCHEMES", "simulate", "load", "Experiment", "DiscreetError"} <= exported


@pytest.mark.parametrize("name", discreet.__all__)
def test_every_name_is_importable_and_documented(name):
    value = getattr(discreet, name)
    if not callable(value):
        return  # a table: its module describes it
    text = vars(value)["__doc__"] if inspect.isclass(value) else value.__doc__
    # a dataclass without a docstring is given its signature as one
    assert text and text[0].isupper() and not text.startswith(f"{name}(")


def test_importing_everything_works():
    names = {}
    exec("from discreet import *", names)  # as a user at a prompt does
    assert set(discreet.__all__) <= set(names)


def test_every_scheme_has_its_class_among_the_public_names():
    assert {kind.__name__ for kind in discreet.SCHEMES.values()} <= set(discreet.__all__)
