"""Who takes part, pinned before anything runs: every site's number, name and public key, and the server's.

The operators make it together: each sends its public key, all compare fingerprints by another way than that by which
the file came, and every party keeps the same file. Then a server cannot put keys of its own in the place of a site's.
"""

from __future__ import annotations

import re
import struct
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tomli_w

from discreet.errors import DataError
from discreet.federation.identity import fingerprint, same_fingerprint
from discreet.wire import KEY_BYTES, MOST_SITES

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,63}")
_PURPOSE = b"discreet roster 1"
_HEAD = """\
# Who takes part. Every party keeps the same file. Compare fingerprints by telephone, not by the mail that brought it.
# Fingerprint of all of it: {fingerprint}
"""


@dataclass(frozen=True)
class Member:
    """A site in a roster.

    Args:
        number: from 0.
        name: 1 to 64 letters, digits, spaces and ``._-``, the first a letter or a digit.
        public: its identity's public key, 32 bytes.
    """

    number: int
    name: str
    public: bytes

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its public key."""
        return fingerprint(self.public)

    def to_toml(self) -> str:
        """How a site introduces itself: its section of the roster. All of them after the server's make a roster."""
        return tomli_w.dumps({"site": [{"number": self.number, "name": self.name, **_shown(self.public)}]})


def server_toml(public: bytes) -> str:
    """How the server introduces itself: its section of the roster."""
    return tomli_w.dumps({"server": _shown(public)})


@dataclass(frozen=True)
class Roster:
    """Who takes part.

    Args:
        server: the server's public key, 32 bytes.
        sites: in the order of their numbers, which are 0 to N - 1.
        source: where it was read, for errors.

    Raises:
        DataError: numbers are missing or taken twice, two parties have the same key or name, or one has none.
    """

    server: bytes
    sites: tuple[Member, ...]
    source: str = field(default="roster", compare=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.sites) <= MOST_SITES:
            raise DataError(self.source, f"has {len(self.sites)} sites: expected 1 to {MOST_SITES}")
        owners: dict[bytes, str] = {}
        _check_key(self.source, "server", self.server, owners)
        names: set[str] = set()
        for place, site in enumerate(self.sites):
            if site.number != place:
                raise DataError(
                    self.source,
                    f"has site {site.number} in the place of site {place}: expected the numbers 0 to "
                    f"{len(self.sites) - 1}, each once and in order",
                )
            check_name(site.name, f"{self.source}: site {place}")
            if site.name.casefold() in names:
                raise DataError(
                    self.source, f"has two sites named {site.name!r}: expected a name of its own for each"
                )
            names.add(site.name.casefold())
            _check_key(self.source, f"site {place}", site.public, owners)

    def __len__(self) -> int:
        return len(self.sites)

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the whole roster: parties with the same one agree on every number, name and key."""
        parts = [_PURPOSE, self.server, struct.pack("<I", len(self.sites))]
        for site in self.sites:
            name = site.name.encode()
            parts += [struct.pack("<II", site.number, len(name)), name, site.public]
        return fingerprint(b"".join(parts))

    def masking(self) -> Mapping[int, bytes]:
        """Every site's public key by its number, as masked sums take it."""
        return {site.number: site.public for site in self.sites}

    def public(self, number: int) -> bytes | None:
        """A site's public key; None if there is no such site."""
        return self.sites[number].public if 0 <= number < len(self.sites) else None

    def name(self, number: int) -> str:
        """What to call a site in a log."""
        return self.sites[number].name if 0 <= number < len(self.sites) else f"site {number}"

    def number_of(self, public: bytes) -> int | None:
        """Whose public key it is; None if no site's."""
        return next((site.number for site in self.sites if site.public == public), None)

    def to_toml(self) -> str:
        """The roster as a file for people to check."""
        head = _HEAD.format(fingerprint=self.fingerprint)
        return "\n".join([head, server_toml(self.server), *(site.to_toml() for site in self.sites)])

    @classmethod
    def from_toml(cls, text: str, source: object = "roster") -> Roster:
        """The roster in a file.

        A fingerprint beside a key may be left out; one that is there has to be the key's.

        Args:
            text: the file's content.
            source: the file, for errors.

        Raises:
            DataError: it is no roster.
        """
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise DataError(source, f"is not TOML: {error}") from None
        _check_keys(source, "the file", table, {"server", "site"})
        server = table.get("server")
        if not isinstance(server, dict):
            raise DataError(source, "names no server: expected a section [server] with its public_key")
        _check_keys(source, "[server]", server, {"public_key", "fingerprint"})
        entries = table.get("site")
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise DataError(source, "names no sites: expected a section [[site]] for each")
        members = (_member(source, place, entry) for place, entry in enumerate(entries))
        sites = tuple(sorted(members, key=lambda member: member.number))
        return cls(_key(source, "server", server), sites, str(source))


def check_name(name: object, where: str) -> str:
    """A site's name, if it is one.

    Raises:
        DataError: it would not fit a log or a file's name.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise DataError(
            where,
            f"name {name!r:.80}: expected 1 to 64 letters, digits, spaces and . _ - that begin with a letter or a digit",
        )
    return name


def _shown(public: bytes) -> dict[str, str]:
    return {"public_key": public.hex(), "fingerprint": fingerprint(public)}


def _member(source: object, place: int, entry: Mapping[str, Any]) -> Member:
    where = f"[[site]] {place + 1}"
    _check_keys(source, where, entry, {"number", "name", "public_key", "fingerprint"})
    number, name = entry.get("number"), entry.get("name")
    if type(number) is not int:
        raise DataError(source, f"{where}: number = {number!r}: expected a whole number from 0")
    return Member(number, check_name(name, f"{source}: {where}"), _key(source, where, entry))


def _key(source: object, where: str, entry: Mapping[str, Any]) -> bytes:
    """The public key of an entry, checked against the fingerprint beside it."""
    text, stated = entry.get("public_key"), entry.get("fingerprint")
    if not isinstance(text, str) or re.fullmatch(r"[0-9a-fA-F]{64}", text) is None:
        raise DataError(
            source,
            f"{where}: public_key = {text!r:.80}: expected {KEY_BYTES} bytes, 64 hexadecimal digits",
        )
    key = bytes.fromhex(text)
    if stated is not None and not (isinstance(stated, str) and same_fingerprint(stated, fingerprint(key))):
        raise DataError(
            source, f"{where}: the fingerprint is not that of the public_key, which is {fingerprint(key)}"
        )
    return key


def _check_key(source: object, where: str, key: bytes, owners: dict[bytes, str]) -> None:
    if len(key) != KEY_BYTES:
        raise DataError(source, f"{where}: a public key of {len(key)} bytes: expected {KEY_BYTES}")
    if key in owners:
        raise DataError(
            source, f"{where} has the same public key as {owners[key]}: expected a key of its own for each"
        )
    owners[key] = where


def _check_keys(source: object, where: str, table: Mapping[str, Any], known: set[str]) -> None:
    for key in table:
        if key not in known:
            raise DataError(
                source, f"{where} has the unknown key {key!r}: expected {', '.join(sorted(known))}"
            )
