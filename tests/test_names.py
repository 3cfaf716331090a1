import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.names import did_you_mean, nearest

NAMES = ["iid", "dirichlet", "shards", "Column_A"]
WORDS = st.text("abcdefgh", min_size=3, max_size=12)


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("dirichlett", "dirichlet"),
        ("dirchlet", "dirichlet"),
        ("idi", "iid"),
        ("SHARD", "shards"),
        ("column_a", "Column_A"),
        ("columna", "Column_A"),
        ("grid", None),
        ("", None),
    ],
)
def test_the_nearest_name_whatever_its_case(word, near):
    assert nearest(word, NAMES) == near
    assert did_you_mean(word, NAMES) == (f"; did you mean {near!r}?" if near else "")


def test_near_is_six_letters_in_ten():
    assert nearest("abcdefxxxx", ["abcdefghij"]) == "abcdefghij"
    assert nearest("abcdexxxxx", ["abcdefghij"]) is None


@given(st.sets(WORDS, min_size=1, max_size=8), st.data())
def test_a_name_is_nearest_to_itself(names, data):
    name = data.draw(st.sampled_from(sorted(names)))
    assert nearest(name.upper(), iter(names)) == name


@given(WORDS, st.data())
def test_a_letter_too_many_is_forgiven(name, data):
    place = data.draw(st.integers(0, len(name)))
    assert nearest(f"{name[:place]}z{name[place:]}", ["wholly-unlike", name]) == name


@given(st.lists(WORDS, max_size=8), st.text("stuvwxyz", max_size=12))
def test_nothing_is_near_a_word_without_a_letter_in_common(names, word):
    assert nearest(word, names) is None and did_you_mean(word, names) == ""
