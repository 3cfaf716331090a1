import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from discreet.augment import AUGMENTATIONS, FlipCrop
from discreet.errors import ConfigError

DTYPES = [torch.uint8, torch.int64, torch.float16, torch.float32, torch.float64, torch.bool]


def some_images(seed, shape, dtype=torch.float32):
    values = np.random.default_rng(seed).integers(1, 256, shape)
    return torch.from_numpy(values).to(dtype)


def one_by_one(images, flips, offsets, pad):
    """The same as FlipCrop.apply, image after image in numpy."""
    height, width = images.shape[2:]
    changed = []
    for image, flip, (top, left) in zip(images.numpy(), flips, offsets, strict=True):
        mirrored = image[:, :, ::-1] if flip else image
        padded = np.pad(mirrored, ((0, 0), (pad, pad), (pad, pad)))
        changed.append(padded[:, top : top + height, left : left + width])
    return np.stack(changed)


SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(5, 9), st.integers(5, 9))


@given(SHAPES, st.integers(0, 4), st.integers(0, 2**32), st.sampled_from(DTYPES))
def test_a_batch_is_changed_as_image_after_image(shape, pad, seed, dtype):
    images, augment = some_images(seed, shape, dtype), FlipCrop(pad=pad)
    before = images.clone()
    drawn = augment.draw(np.random.default_rng(seed), shape[:1])
    changed = augment.apply(images, drawn.flips, drawn.offsets)
    assert changed.dtype == dtype
    assert changed.shape == images.shape
    assert np.array_equal(changed.numpy(), one_by_one(images, drawn.flips, drawn.offsets, pad))
    assert torch.equal(images, before)


def test_a_small_image_by_hand():
    image = torch.tensor([[[[1, 2, 3], [4, 5, 6], [7, 8, 9]]]])
    augment = FlipCrop(pad=1)

    def at(flip, top, left):
        return augment.apply(image, torch.tensor([flip]), torch.tensor([[top, left]]))[0, 0].tolist()

    assert at(False, 0, 0) == [[0, 0, 0], [0, 1, 2], [0, 4, 5]]
    assert at(False, 2, 1) == [[4, 5, 6], [7, 8, 9], [0, 0, 0]]
    assert at(False, 1, 2) == [[2, 3, 0], [5, 6, 0], [8, 9, 0]]
    assert at(True, 1, 1) == [[3, 2, 1], [6, 5, 4], [9, 8, 7]]
    assert at(True, 0, 2) == [[0, 0, 0], [2, 1, 0], [5, 4, 0]]


@given(SHAPES, st.integers(0, 4), st.integers(0, 2**32))
def test_no_flip_at_the_middle_is_the_identity(shape, pad, seed):
    images = some_images(seed, shape)
    same = FlipCrop(pad=pad).apply(images, np.zeros(shape[0], bool), np.full((shape[0], 2), pad))
    assert torch.equal(same, images)
    assert same.data_ptr() != images.data_ptr()


@given(SHAPES, st.integers(0, 4), st.integers(0, 2**32))
def test_two_flips_are_the_identity(shape, pad, seed):
    images, augment = some_images(seed, shape), FlipCrop(pad=pad)
    flips, middle = np.ones(shape[0], bool), np.full((shape[0], 2), pad)
    once = augment.apply(images, flips, middle)
    assert torch.equal(once, images.flip(-1))
    assert torch.equal(augment.apply(once, flips, middle), images)


def test_images_that_do_not_lie_in_one_piece_are_changed_alike():
    images, augment = some_images(0, (3, 8, 6, 2)).permute(0, 3, 2, 1), FlipCrop(pad=2)
    drawn = augment.draw(np.random.default_rng(0), (3,))
    expected = one_by_one(images, drawn.flips, drawn.offsets, 2)
    assert np.array_equal(augment.apply(images, drawn.flips, drawn.offsets).numpy(), expected)


def test_an_empty_batch_stays_empty():
    augment = FlipCrop()
    drawn = augment.draw(np.random.default_rng(0), (0,))
    assert augment.apply(torch.zeros(0, 3, 8, 8), drawn.flips, drawn.offsets).shape == (0, 3, 8, 8)


@given(st.lists(st.integers(0, 5), max_size=3).map(tuple), st.integers(0, 5), st.booleans())
def test_draws_have_the_shape_asked_for_and_stay_in_range(shape, pad, flip):
    drawn = FlipCrop(flip=flip, pad=pad).draw(np.random.default_rng(0), shape)
    assert (drawn.flips.shape, drawn.flips.dtype) == (shape, np.bool_)
    assert (drawn.offsets.shape, drawn.offsets.dtype) == ((*shape, 2), np.int64)
    assert ((drawn.offsets >= 0) & (drawn.offsets <= 2 * pad)).all()
    assert flip or not drawn.flips.any()


def test_the_same_stream_draws_the_same():
    first, again = (FlipCrop().draw(np.random.default_rng(7), (30, 10)) for _ in range(2))
    assert np.array_equal(first.flips, again.flips)
    assert np.array_equal(first.offsets, again.offsets)


def test_flips_and_offsets_are_uniform_and_independent():
    # 162 cells (flip, top, left) of 500 expected: chi-square with 161 degrees of freedom, mean 161 and deviation
    # 17.9, exceeds 266 about once in 2.7e6.
    drawn = FlipCrop().draw(np.random.default_rng(11), (162 * 500,))
    cells = drawn.flips * 81 + drawn.offsets[:, 0] * 9 + drawn.offsets[:, 1]
    counts = np.bincount(cells, minlength=162)
    assert len(counts) == 162
    assert ((counts - 500) ** 2 / 500).sum() < 266


def test_the_table_of_augmentations():
    assert AUGMENTATIONS["none"] is None
    image = torch.tensor([[[[1, 2], [3, 4]]]])
    flip, crop = AUGMENTATIONS["flip"], AUGMENTATIONS["crop"]
    assert flip.apply(image, np.array([True]), np.array([[0, 0]]))[0, 0].tolist() == [[2, 1], [4, 3]]
    drawn = flip.draw(np.random.default_rng(0), (100,))
    assert drawn.flips.any() and not drawn.offsets.any()
    drawn = crop.draw(np.random.default_rng(0), (100,))
    assert not drawn.flips.any() and drawn.offsets.max() == 8
    assert AUGMENTATIONS["flip-crop"] == FlipCrop(flip=True, pad=4)


@pytest.mark.parametrize("shape", [(10, 784), (10, 8, 8), (2, 10, 3, 8, 8)])
def test_what_is_no_image_is_refused(shape):
    with pytest.raises(ConfigError, match=r"images of shape \(channels, height, width\)") as refused:
        FlipCrop().apply(torch.zeros(shape), np.zeros(shape[0], bool), np.zeros((shape[0], 2), int))
    assert refused.value.key == "data.augment"
    assert str(shape[1:]) in str(refused.value)
    with pytest.raises(ConfigError):
        FlipCrop().check(shape[1:])


def test_a_crop_that_could_miss_the_image_is_refused():
    FlipCrop(pad=4).check((1, 5, 5))
    with pytest.raises(ConfigError, match="smaller than the sides of the image, 4 x 9"):
        FlipCrop(pad=4).check((1, 4, 9))


def test_a_negative_pad_is_refused():
    with pytest.raises(ConfigError, match="at least 0"):
        FlipCrop(pad=-1)


@pytest.mark.parametrize(("flips", "offsets"), [((2,), (3, 2)), ((3,), (2, 2)), ((3,), (3,)), ((), (3, 2))])
def test_draws_for_another_batch_are_refused(flips, offsets):
    with pytest.raises(ValueError, match="3 images need"):
        FlipCrop().apply(torch.zeros(3, 1, 8, 8), np.zeros(flips, bool), np.zeros(offsets, int))
