"""Rosters: what two operators compare is all that a masked sum relies on."""

import dataclasses
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import DataError
from discreet.federation.identity import Identity
from discreet.federation.roster import Member, Roster, server_toml

SERVER = Identity.from_secret(bytes(31) + b"\xff").public
KEYS = [Identity.from_secret(bytes([number]) * 32).public for number in range(6)]


def roster(count=3):
    return Roster(SERVER, tuple(Member(n, f"site-{n}", KEYS[n]) for n in range(count)))


names = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._ -]{0,63}\Z")
rosters = st.lists(
    st.tuples(names, st.binary(min_size=32, max_size=32)),
    min_size=1,
    max_size=6,
    unique_by=(lambda site: site[0].casefold(), lambda site: site[1]),
).filter(lambda sites: all(key != SERVER for _, key in sites))


@given(rosters)
def test_toml_there_and_back(sites):
    one = Roster(SERVER, tuple(Member(number, *site) for number, site in enumerate(sites)))
    again = Roster.from_toml(one.to_toml())
    assert again == one
    assert again.fingerprint == one.fingerprint


def test_sites_may_stand_in_any_order_in_the_file():
    head, *sites = roster().to_toml().split("[[site]]")
    assert Roster.from_toml("[[site]]".join([head, *reversed(sites)])) == roster()


def test_introductions_one_after_another_make_a_roster():
    texts = [server_toml(SERVER), *(site.to_toml() for site in roster().sites)]
    assert Roster.from_toml("\n".join(texts)) == roster()
    assert all(tomllib.loads(text) for text in texts)


def test_the_file_shows_the_fingerprint_of_all_of_it_and_of_every_key():
    text = roster().to_toml()
    assert roster().fingerprint in text
    assert all(site.fingerprint in text for site in roster().sites)


def test_the_fingerprint_depends_on_every_name_number_and_key():
    one = roster()
    first, second, third = one.sites
    others = [
        Roster(KEYS[5], one.sites),
        Roster(SERVER, one.sites[:2]),
        Roster(SERVER, (dataclasses.replace(first, name="site-0 "), second, third)),
        Roster(SERVER, (dataclasses.replace(first, public=KEYS[5]), second, third)),
        Roster(SERVER, (Member(0, "site-1", KEYS[1]), Member(1, "site-0", KEYS[0]), third)),
    ]
    assert len({one.fingerprint, *(other.fingerprint for other in others)}) == 6


def test_names_of_different_lengths_cannot_shift_into_one_another():
    # the same bytes in a row, cut elsewhere
    key = b"b" + bytes(31)
    one = Roster(SERVER, (Member(0, "a", key),))
    other = Roster(SERVER, (Member(0, "ab", bytes(31) + b"\x01"),))
    assert one.fingerprint != other.fingerprint


def test_whose_key_it_is():
    one = roster()
    assert one.masking() == {0: KEYS[0], 1: KEYS[1], 2: KEYS[2]}
    assert (one.number_of(KEYS[1]), one.number_of(KEYS[5])) == (1, None)
    assert (one.public(2), one.public(3), one.public(-1)) == (KEYS[2], None, None)
    assert (one.name(2), one.name(3), len(one)) == ("site-2", "site 3", 3)


def swapped(text, old, new):
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: "", "names no server"),
        (lambda text: "[server", "is not TOML"),
        (lambda text: text.split("[[site]]")[0], "names no sites"),
        (lambda text: swapped(text, "number = 1", "number = 3"), r"has site 2 in the place of site 1"),
        (lambda text: swapped(text, "number = 1", "number = 0"), r"has site 0 in the place of site 1"),
        (lambda text: swapped(text, "number = 1", "number = true"), r"\[\[site\]\] 2: number = True"),
        (lambda text: swapped(text, "number = 1", "number = -1"), r"has site -1 in the place of site 0"),
        (lambda text: swapped(text, KEYS[1].hex(), KEYS[1].hex()[:-1]), r"\[\[site\]\] 2: public_key = .*64"),
        (lambda text: swapped(text, KEYS[1].hex(), "xy" * 32), r"\[\[site\]\] 2: public_key"),
        (lambda text: swapped(text, KEYS[1].hex(), KEYS[4].hex()), r"\[\[site\]\] 2: the fingerprint is not"),
        (lambda text: swapped(text, SERVER.hex(), KEYS[4].hex()), r"server: the fingerprint is not"),
        (lambda text: swapped(text, '"site-1"', '"SITE-0"'), "two sites named 'SITE-0'"),
        (lambda text: swapped(text, '"site-1"', '"../up"'), r"name '\.\./up'"),
        (lambda text: swapped(text, '"site-1"', '"a\\nb"'), r"name 'a\\nb'"),
        (lambda text: swapped(text, '"site-1"', "7"), "name 7"),
        (lambda text: swapped(text, "number = 1", "number = 1\nadress = 'x'"), "unknown key 'adress'"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_in_one_line(change, complaint):
    with pytest.raises(DataError, match=complaint) as caught:
        Roster.from_toml(change(roster().to_toml()), "roster.toml")
    assert str(caught.value).startswith("roster.toml")
    assert "\n" not in str(caught.value)


def test_a_fingerprint_may_be_left_out():
    lines = [line for line in roster().to_toml().splitlines() if not line.startswith("fingerprint")]
    assert Roster.from_toml("\n".join(lines)) == roster()


@pytest.mark.parametrize(
    ("server", "keys", "complaint"),
    [
        (SERVER, [KEYS[0], KEYS[0]], "site 1 has the same public key as site 0"),
        (KEYS[1], KEYS[:2], "site 1 has the same public key as server"),
        (SERVER[:-1], KEYS[:1], "server: a public key of 31 bytes"),
        (SERVER, [b""], "site 0: a public key of 0 bytes"),
        (SERVER, [], "has 0 sites"),
    ],
)
def test_keys_that_cannot_be_are_refused(server, keys, complaint):
    with pytest.raises(DataError, match=complaint):
        Roster(server, tuple(Member(number, f"s{number}", key) for number, key in enumerate(keys)))
