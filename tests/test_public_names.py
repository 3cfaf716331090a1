import ast
import inspect
import subprocess
import sys

import pytest

import discreet


def test_all_is_what_is_exported():
    exported = set(dir(discreet))
    assert exported == set(discreet.__all__) == set(discreet._PLACES)
    assert len(discreet.__all__) == len(set(discreet.__all__))
    assert {"SCHEMES", "simulate", "load", "Experiment", "Privacy", "DiscreetError"} <= exported


def test_what_type_checkers_see_is_what_is_imported():
    """The names stand in a branch that never runs, so nothing but this test compares them."""
    tree = ast.parse(inspect.getsource(discreet))
    (branch,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: part.module for part in branch.body for alias in part.names}
    assert seen == discreet._PLACES


def test_another_name_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'FedWhat'"):
        discreet.FedWhat  # noqa: B018


def test_importing_the_package_loads_no_torch():
    """The command line answers at once because of it."""
    script = "import sys, discreet; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


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
