import sys
import types

import pytest
import torch
import torch.nn.functional as F

from discreet.errors import ModelError
from discreet.losses import (
    FOR_CLASSES,
    FOR_VALUES,
    LOSSES,
    called,
    check,
    cross_entropy,
    find,
    mean_squared_error,
    quadratic_cross_entropy,
    squared_error,
)


def test_cross_entropy_is_torchs_at_any_leading_shape():
    torch.manual_seed(0)
    outputs, targets = torch.randn(4, 5, 3), torch.randint(3, (4, 5))
    theirs = F.cross_entropy(outputs.view(-1, 3), targets.view(-1), reduction="none").view(4, 5)
    assert torch.allclose(cross_entropy(outputs, targets), theirs, atol=1e-6)
    assert torch.allclose(cross_entropy(outputs[0], targets[0]), theirs[0], atol=1e-6)


def test_cross_entropy_by_hand():
    outputs = torch.tensor([[0.0, 0.0], [1000.0, 0.0], [-1000.0, 0.0]])
    values = cross_entropy(outputs, torch.tensor([1, 0, 0]))
    assert values.tolist() == pytest.approx([0.6931472, 0.0, 1000.0])


def test_quadratic_cross_entropy_by_hand():
    outputs = torch.tensor([[0.0, 0.0], [3.0, -1.0], [5.0, 5.0]])
    values = quadratic_cross_entropy(outputs, torch.tensor([1, 0, 0]))
    # log 2; log 2 + 1 - 3 + (5 - 1) / 2; log 2 + 5 - 5, as a common level does not matter
    assert values.tolist() == pytest.approx([0.6931472, 0.6931472, 0.6931472])


def test_quadratic_cross_entropy_is_cross_entropy_to_second_order():
    torch.manual_seed(0)
    outputs, targets = torch.randn(4, 5, 3).double(), torch.randint(3, (4, 5))
    apart = [
        float(
            (cross_entropy(size * outputs, targets) - quadratic_cross_entropy(size * outputs, targets))
            .abs()
            .max()
        )
        for size in (1e-1, 1e-2)
    ]
    # what is left is of third order: a tenth of the outputs, a thousandth of the difference
    assert 0 < apart[1] < 1.3e-3 * apart[0]


def test_mean_squared_error_by_hand():
    outputs = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    targets = torch.tensor([[3.0, 1.0], [0.0, 4.0]])
    assert mean_squared_error(outputs, targets).tolist() == [2.5, 8.0]
    assert mean_squared_error(outputs[None], targets[None]).tolist() == [[2.5, 8.0]]


def test_squared_error_of_values_by_hand():
    outputs = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
    targets = torch.tensor([[3.0, 1.0, 1.0], [0.0, 4.0, 1.0]])
    # (4 + 1 + 1) / 2 and 16 / 2: a sum over the outputs, where the mean has thirds
    assert squared_error(outputs, targets).tolist() == [3.0, 8.0]
    assert squared_error(outputs[None], targets[None]).tolist() == [[3.0, 8.0]]


def test_squared_error_of_classes_is_that_of_one_hot_vectors():
    outputs = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
    # to (0, 1, 0): (1 + 1 + 0) / 2; to (0, 0, 1): 0
    classes = torch.tensor([1, 2])
    assert squared_error(outputs, classes).tolist() == [1.0, 0.0]
    assert squared_error(outputs[None], classes[None]).tolist() == [[1.0, 0.0]]
    assert outputs.tolist() == [[1.0, 2.0, 0.0], [0.0, 0.0, 1.0]], (
        "in place of the outputs nothing is written"
    )


@pytest.mark.parametrize("targets", [torch.tensor([1, 2]), torch.tensor([[0.0, 1, 0], [0, 0, 1]])])
def test_the_gradient_of_the_squared_error_is_the_residual_in_both_types(targets):
    for dtype in (torch.float32, torch.float64):
        outputs = torch.tensor([[1.0, 2.0, 0.5], [0.25, 0.0, 1.0]], dtype=dtype, requires_grad=True)
        (found,) = torch.autograd.grad(squared_error(outputs, targets).sum(), outputs)
        assert found.dtype == dtype and found.tolist() == [[1.0, 1.0, 0.5], [0.25, 0.0, 0.0]]


def test_auto_follows_the_targets():
    assert find("auto", classes=True) is cross_entropy
    assert find("auto", classes=False) is mean_squared_error
    assert find("cross-entropy", classes=True) is LOSSES["cross-entropy"]
    assert find("mse", classes=False) is mean_squared_error


@pytest.mark.parametrize("classes", [True, False])
def test_the_squared_error_is_for_classes_and_for_values(classes):
    assert find("squared-error", classes=classes) is squared_error


def test_every_loss_with_a_name_is_for_some_targets_and_works_on_them():
    assert {*FOR_CLASSES, *FOR_VALUES} == LOSSES.keys()
    outputs = torch.tensor([[0.5, -0.25], [0.0, 1.0], [2.0, 2.0]])
    for classes, names, targets in (
        (True, FOR_CLASSES, torch.tensor([0, 1, 1])),
        (False, FOR_VALUES, torch.zeros(3, 2)),
    ):
        for name in names:
            check(find(name, classes=classes), outputs, targets)


@pytest.mark.parametrize(
    ("name", "classes"), [("mse", True), ("cross-entropy", False), ("quadratic-cross-entropy", False)]
)
def test_a_loss_that_does_not_fit_the_targets_is_refused(name, classes):
    with pytest.raises(ModelError, match=f"model.loss = '{name}' does not fit"):
        find(name, classes=classes)


@pytest.fixture
def losses_module(monkeypatch):
    module = types.ModuleType("losses_of_a_user")
    module.absolute = lambda outputs, targets: (outputs - targets).abs().sum(-1)
    module.number = 3
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_a_users_loss_is_found(losses_module):
    assert find("losses_of_a_user:absolute", classes=False) is losses_module.absolute
    own = losses_module.absolute
    assert find(own, classes=True) is own


@pytest.mark.parametrize(
    "spec",
    [
        "nosuch",
        "nosuch.module:loss",
        "losses_of_a_user:absent",
        "losses_of_a_user:number",
        "losses_of_a_user",
        "squared-eror",
        ".relative:loss",
        ":loss",
        "",
    ],
)
def test_a_loss_that_is_not_there_is_refused_in_one_line(losses_module, spec):
    with pytest.raises(ModelError, match=r"model\.loss = ") as caught:
        find(spec, classes=True)
    assert repr(spec) in str(caught.value) and "\n" not in str(caught.value)


def test_a_loss_is_called_as_it_is_asked_for(losses_module):
    assert [called(find(name, classes=name != "mse")) for name in LOSSES] == list(LOSSES)
    losses_module.l_w = test_a_users_loss_is_found
    assert called(losses_module.l_w) == f"{__name__}:test_a_users_loss_is_found"
    with pytest.raises(ModelError, match=r"'squared-eror': expected auto, .*did you mean 'squared-error'\?"):
        find("squared-eror", classes=True)


def test_a_users_module_that_fails_is_refused_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "broken_losses.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match=r"broken_losses.*division by zero"):
        find("broken_losses:loss", classes=True)


def test_a_loss_with_one_value_an_example_passes():
    outputs, targets = torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)
    check(cross_entropy, outputs, targets)
    check(squared_error, outputs, targets)
    check(squared_error, outputs, torch.zeros(4, 3))


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda outputs, targets: cross_entropy(outputs, targets).mean(), r"gave \(\)"),
        (lambda outputs, targets: outputs, r"gave \(4, 3\)"),
        (lambda outputs, targets: 1.0, "gave float"),
        (lambda outputs, targets: outputs @ outputs, "fails on outputs of shape"),
        (lambda outputs, targets: {}["key"], "fails on outputs of shape"),
        (lambda outputs, targets: outputs.nosuch, "fails on outputs of shape"),
        (lambda outputs: outputs, "fails on outputs of shape"),
    ],
)
def test_other_losses_are_refused_in_one_line(loss, told):
    with pytest.raises(ModelError, match=told) as caught:
        check(loss, torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))
    assert "\n" not in str(caught.value)
