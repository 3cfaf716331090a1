import io
import itertools
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discreet.data.archives import names, walk
from discreet.data.dataset import Reading
from discreet.data.images import decode, read_faces, read_image_tree
from discreet.errors import DataError

CLASSES = ("cat", "dog")


def encode(pixels, kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def tree(halves=("train/", "test/"), per_class=3, channels=3, size=(4, 6)):
    """Names and contents; pixel values say which image it is."""
    files = {}
    for half in halves:
        for label in CLASSES:
            for number in range(per_class):
                value = 10 * number + (100 if label == "dog" else 0) + (1 if half == "test/" else 0)
                shape = size if channels == 1 else (*size, 3)
                files[f"{half}{label}/{number}.png"] = encode(np.full(shape, value, np.uint8))
    return files


def write(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def pack(path, files, reverse=False):
    items = sorted(files.items(), reverse=reverse)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in items:
                archive.writestr(name, content)
    else:
        with tarfile.open(path, "w" if path.suffix == ".tar" else f"w:{path.suffix[1:]}") as archive:
            for name, content in items:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return path


def same(a, b):
    for field in ("train_inputs", "train_targets", "test_inputs", "test_targets"):
        np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
    assert a.classes == b.classes


def test_train_and_test_folders(tmp_path):
    arrays = read_image_tree(write(tmp_path, tree()), Reading())
    assert arrays.classes == CLASSES
    assert arrays.train_inputs.shape == (6, 3, 4, 6) and arrays.train_inputs.dtype == np.uint8
    assert arrays.train_inputs[:, 0, 0, 0].tolist() == [0, 10, 20, 100, 110, 120]
    assert arrays.train_targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert arrays.test_inputs[:, 2, 3, 5].tolist() == [1, 11, 21, 101, 111, 121]


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tar.bz2", "a.tar.xz", "a.zip"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_an_archive_gives_what_its_folder_gives(tmp_path, name, wrapped):
    files = tree()
    expected = read_image_tree(write(tmp_path / "folder", files), Reading())
    inside = {f"./my/{key}" if wrapped else key: value for key, value in files.items()}
    archive = pack(tmp_path / name, inside | {"README": b"x", "__MACOSX/cat/._0.png": b"x"}, reverse=True)
    same(read_image_tree(archive, Reading()), expected)


def test_without_a_test_split_one_is_divided_off(tmp_path):
    folder = write(tmp_path, tree(halves=("",), per_class=10))
    arrays = read_image_tree(folder, Reading(test_fraction=0.3, seed=1))
    assert np.bincount(arrays.test_targets).tolist() == [3, 3]
    both = [*arrays.train_inputs[:, 0, 0, 0], *arrays.test_inputs[:, 0, 0, 0]]
    assert sorted(both) == [10 * n for n in range(10)] + [100 + 10 * n for n in range(10)]
    same(arrays, read_image_tree(folder, Reading(test_fraction=0.3, seed=1)))
    other = read_image_tree(folder, Reading(test_fraction=0.3, seed=2))
    assert not np.array_equal(arrays.test_inputs, other.test_inputs)


def test_grey_images_have_one_channel_unless_mixed(tmp_path):
    grey = tree(channels=1)
    assert read_image_tree(write(tmp_path / "grey", grey), Reading()).train_inputs.shape[1] == 1
    mixed = grey | {"train/cat/9.png": encode(np.full((4, 6, 3), 5, np.uint8))}
    arrays = read_image_tree(write(tmp_path / "mixed", mixed), Reading())
    assert arrays.train_inputs.shape[1] == 3
    assert (arrays.train_inputs[0] == 0).all() and (arrays.train_inputs[1] == 10).all()


def test_one_image_of_another_size(tmp_path):
    files = tree() | {"train/dog/1.png": encode(np.zeros((5, 6, 3), np.uint8))}
    folder = write(tmp_path, files)
    with pytest.raises(DataError, match=r"train/dog/1.png: 6x5 pixels, but \S+ has 6x4"):
        read_image_tree(folder, Reading())
    arrays = read_image_tree(folder, Reading(image_size=(3, 2)))
    assert arrays.train_inputs.shape == (6, 3, 3, 2)
    assert (arrays.train_inputs[1] == 10).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_truncated_image(tmp_path, kind):
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    content = encode(noise, kind)
    name = "train/cat/1." + kind.lower()
    for length in (0, 1, 20, len(content) // 2, len(content) - 30):
        folder = write(tmp_path / str(length), {name: content[:length], "train/dog/1.png": encode(noise)})
        with pytest.raises(DataError, match=rf"{name}: damaged or not an image") as caught:
            read_image_tree(folder, Reading())
        assert "\n" not in str(caught.value) and "0x" not in str(caught.value)


def test_jpeg_is_decoded_as_pillow_does():
    noise = np.random.default_rng(0).integers(0, 256, (16, 8, 3), np.uint8)
    content = encode(noise, "JPEG")
    expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    np.testing.assert_array_equal(decode(Path("x"), content), expected.transpose(2, 0, 1))


def test_sixteen_bits_are_refused(tmp_path):
    content = encode(np.zeros((4, 4), np.uint16))
    with pytest.raises(DataError, match="more than 8 bits"):
        decode(Path("x.png"), content)


def test_transparent_and_palette_images(tmp_path):
    rgba = np.full((2, 2, 4), 77, np.uint8)
    assert decode(Path("x"), encode(rgba)).tolist() == np.full((3, 2, 2), 77).tolist()
    palette = Image.fromarray(np.full((2, 2, 3), 40, np.uint8)).quantize(4)
    buffer = io.BytesIO()
    palette.save(buffer, "PNG")
    assert (decode(Path("x"), buffer.getvalue()) == 40).all()


@pytest.mark.parametrize(
    ("files", "pattern"),
    [
        ({"README": b""}, "no images in it"),
        ({"a.png": encode(np.zeros((2, 2), np.uint8))}, "not where the others are"),
        (tree() | {"train/cat/deep/1.png": b""}, "deep/1.png: not where the others are"),
        (tree() | {"cat/1.png": encode(np.zeros((4, 6, 3), np.uint8))}, "in both train and test"),
        (tree(halves=("train/",)), "in both train and test"),
        (
            tree() | {"test/owl/1.png": encode(np.zeros((4, 6, 3), np.uint8))},
            "test/owl/1.png: class 'owl' has no",
        ),
        ({k: v for k, v in tree().items() if "cat" in k}, "images of 1 classes"),
    ],
)
def test_layouts_that_are_refused(tmp_path, files, pattern):
    with pytest.raises(DataError, match=pattern):
        read_image_tree(write(tmp_path, files), Reading())


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tar.bz2", "a.tar.xz", "a.zip"])
def test_truncated_archives(tmp_path, name):
    whole = pack(tmp_path / name, tree()).read_bytes()
    path = tmp_path / ("cut" + name)
    for length in {
        0,
        3,
        700,
        1024,
        len(whole) // 2,
        len(whole) - 12,
        *range(512, min(len(whole), 9000), 512),
    }:
        if length >= len(whole):
            continue
        if name == "a.tar" and whole[:length].endswith(b"\0" * 512) and not whole[length:].strip(b"\0"):
            continue  # only padding is cut off
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=f"cut{name}: (damaged|truncated)"):
            list(walk(path, lambda name: True))


def test_flipped_bit_in_an_archive(tmp_path):
    for name in ("a.tar.gz", "a.zip"):
        content = bytearray(pack(tmp_path / name, {"x/1.png": bytes(1000)}).read_bytes())
        content[90] ^= 16
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match="damaged"):
            list(walk(tmp_path / name, lambda name: True))


def test_encrypted_zip(tmp_path):
    path = pack(tmp_path / "a.zip", {"x/1.png": b"1234"})
    content = bytearray(path.read_bytes())
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="encrypted"):
        list(walk(path, lambda name: True))


def test_members_that_are_no_files_are_passed_over(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo("cat/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        folder = tarfile.TarInfo("cat")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    assert names(path) == []


def test_progress_ends_at_its_total(tmp_path):
    for path in (
        write(tmp_path / "folder", tree()),
        pack(tmp_path / "a.tar.gz", tree()),
        pack(tmp_path / "a.zip", tree()),
    ):
        seen = []
        read_image_tree(
            path, Reading(progress=lambda done, total, what, seen=seen: seen.append((done, total, what)))
        )
        assert seen[-1][0] == seen[-1][1] > 0 and path.name in seen[-1][2]
        assert all(a[0] <= b[0] for a, b in itertools.pairwise(seen))


def faces(folder, counts):
    rng = np.random.default_rng(3)
    home = folder / "lfw_home"
    for person, count in counts.items():
        for number in range(1, count + 1):
            pixels = np.asarray(Image.fromarray(rng.integers(0, 256, (9, 9, 3), np.uint8)).resize((250, 250)))
            write(home / "lfw_funneled", {f"{person}/{person}_{number:04}.jpg": encode(pixels, "JPEG")})
    for name in ("pairsDevTrain.txt", "pairsDevTest.txt", "pairs.txt"):
        (home / name).write_text("")
    return home


def test_faces_are_those_of_scikit_learn(tmp_path):
    from sklearn.datasets import fetch_lfw_people

    home = faces(tmp_path, {"Ada_Lovelace": 4, "Alan_Turing": 3, "Too_Few": 1})
    ours = read_faces(home / "lfw_funneled", Reading(min_faces=2, test_fraction=0.4))
    theirs = fetch_lfw_people(data_home=tmp_path, min_faces_per_person=2, download_if_missing=False)
    assert ours.classes == tuple(theirs.target_names) == ("Ada Lovelace", "Alan Turing")
    mine = np.concatenate([ours.train_inputs, ours.test_inputs]).reshape(7, -1).astype(float)
    labels = np.concatenate([ours.train_targets, ours.test_targets])
    distances = np.abs(theirs.images.reshape(7, 1, -1) * 255 - mine[None]).max(axis=2)
    nearest = distances.argmin(axis=1)
    assert sorted(nearest) == list(range(7)), "not the same seven images"
    assert distances.min(axis=1).max() <= 0.5 + 1e-3  # ours are rounded to whole grey values
    assert labels[nearest].tolist() == theirs.target.tolist()
    assert ours.train_inputs.shape[1:] == (1, 62, 47) and len(ours.test_inputs) == 3


def test_faces_from_the_archive(tmp_path):
    home = faces(tmp_path, {"A_B": 3, "C_D": 3})
    with tarfile.open(home / "lfw-funneled.tgz", "w:gz") as archive:
        archive.add(home / "lfw_funneled", arcname="lfw_funneled")
    reading = Reading(min_faces=3)
    same(read_faces(home / "lfw-funneled.tgz", reading), read_faces(home / "lfw_funneled", reading))


def test_nobody_has_enough_faces(tmp_path):
    home = faces(tmp_path, {"A_B": 3, "C_D": 3})
    with pytest.raises(DataError, match="nobody in it has 4 images"):
        read_faces(home / "lfw_funneled", Reading(min_faces=4))
