"""A site's own folder: who it is, what its owner allows, what it has spent, and where it stands.

| file | what | secret |
|---|---|---|
| ``identity.pem`` | the site's private key | yes |
| ``site.toml`` | its number and name, and where its data comes from | no |
| ``limits.toml`` | what its owner allows | no |
| ``roster.toml`` | who takes part; absent where the server is trusted for it | no |
| ``ledger.jsonl``, ``ledger.jsonl.next`` | what was given out; **the newest copy counts** | no |
| ``state`` | where the site stands in its run: keys, streams, its model | yes |
| ``runs/ID/`` | of each finished run: the site's model, and what a model card says | its model |

The folder can be entered, and its files read, by their owner alone; where they cannot be trusted to be, nothing is done.
Nothing in it is ever unpickled.

**Backups.** Never put an old ``ledger.jsonl`` back: what was spent since would be forgotten. Never put an old ``state``
back: the site would answer a second time what it has answered. Without a state it says so, and can join the next run.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from discreet.errors import DataError
from discreet.federation.export import Cost, export_model
from discreet.federation.files import (
    NewFile,
    access,
    check_private,
    make_folder,
    read,
    read_text,
    replace,
    write_new,
)
from discreet.federation.holdings import OwnData
from discreet.federation.identity import Identity
from discreet.federation.keeping import (
    USUAL_DELTA,
    card_of,
    cost_of,
    keep,
    kept_run,
    kept_runs,
    tensors_of,
)
from discreet.federation.kept import kept_model
from discreet.federation.limits import Limits
from discreet.federation.roster import Roster
from discreet.federation.settings import SiteSettings
from discreet.federation.site import Site
from discreet.federation.spending import SpendingFile
from discreet.federation.step import Step

IDENTITY, SETTINGS, LIMITS, ROSTER = "identity.pem", "site.toml", "limits.toml", "roster.toml"
LEDGER, STATE, RUNS = "ledger.jsonl", "state", "runs"

_MAGIC = b"discreet site state 1\n"
_HEAD = struct.Struct("<QQ")
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class Home:
    """A site's folder; get one from `Home.create` or `Home.open`.

    One process at a time may act for the site: see `discreet.federation.resident.acting`.

    Attributes:
        folder: where it is.
        identity: the site's.
        settings: which site it is, and where its data comes from.
        limits: what its owner allows.
        roster: who takes part, or None.
        spending: the site's ledger.
    """

    folder: Path
    identity: Identity
    settings: SiteSettings
    limits: Limits
    roster: Roster | None
    spending: SpendingFile

    @classmethod
    def create(
        cls,
        folder: Path,
        settings: SiteSettings,
        limits: Limits | None = None,
        roster: Roster | None = None,
        identity: Identity | None = None,
    ) -> Home:
        """Make a site's folder.

        Args:
            folder: a new one, or one without these files.
            settings: which site it is.
            limits: what its owner allows; None for `Limits()`.
            roster: who takes part; None to trust the server for it, or to put it there later.
            identity: the site's; None for a new one.

        Raises:
            DataError: one of the files is there already, or cannot be written; or the roster is of others.
        """
        identity = identity or Identity.generate()
        _check_roster(folder / ROSTER, roster, settings, identity)
        files = {
            folder / IDENTITY: NewFile(identity.to_pem()),
            folder / SETTINGS: NewFile(settings.to_toml().encode()),
            folder / LIMITS: NewFile((limits or Limits()).to_toml().encode()),
        }
        if roster is not None:
            files[folder / ROSTER] = NewFile(roster.to_toml().encode())
        make_folder(folder)
        check_private(folder)
        write_new(files)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> Home:
        """The site in a folder.

        Raises:
            DataError: it is no site's folder, others have access to it, or the site is not the one in its roster.
            ConfigError: one of its settings is impossible.
        """
        if not (folder / IDENTITY).exists():
            raise DataError(folder, f"is no site's folder: expected one with {IDENTITY}")
        for secret in (folder, folder / IDENTITY, folder / STATE, folder / LEDGER, folder / RUNS):
            if secret.exists():
                check_private(secret)
        identity = load_identity(folder / IDENTITY)
        settings = SiteSettings.from_toml(read_text(folder / SETTINGS), folder / SETTINGS)
        limits = Limits.from_toml(read_text(folder / LIMITS), folder / LIMITS)
        roster = load_roster(folder / ROSTER) if (folder / ROSTER).exists() else None
        _check_roster(folder / ROSTER, roster, settings, identity)
        return cls(folder, identity, settings, limits, roster, SpendingFile(folder / LEDGER))

    def pin(self, roster: Roster, source: Path | None = None) -> Home:
        """The same site with a roster put into its folder, in place of one that may be there.

        Args:
            roster: the roster.
            source: where it comes from, for what is said of it if it does not fit.

        Raises:
            DataError: the roster is of others, or cannot be written.
        """
        _check_roster(source or self.folder / ROSTER, roster, self.settings, self.identity)
        replace(self.folder / ROSTER, roster.to_toml().encode())
        return Home.open(self.folder)

    def site(self, on_step: Callable[[Step], None] = lambda step: None) -> Site:
        """The site, ready to answer.

        Args:
            on_step: see `Site`.
        """
        data = self.settings.data
        features = None if data.features is None else tuple(data.features)
        return Site(
            self.settings.number,
            self.identity,
            self.limits,
            self.spending,
            roster=self.roster,
            data=OwnData(data.load, features) if data.own else None,
            data_dir=data.folder,
            device=self.settings.device,
            on_step=on_step,
        )

    def answer(self, site: Site, message: bytes) -> bytes:
        """The site's reply to a message; its new state is on the disk before this returns.

        Raises:
            RemoteProtocolError: there is nothing to reply.
            DataError: the state cannot be read or written, or is an old one.
        """
        state, reply = site.step(self.state(), message)
        self.store(state)
        kept = kept_model(state, self.settings.number)
        if kept is not None:
            keep(self.folder / RUNS, kept)
        return reply

    def runs(self) -> tuple[str, ...]:
        """The finished runs of which the site has the model, by their names, the latest last."""
        return kept_runs(self.folder / RUNS)

    def export(self, path: Path, run: str | None = None) -> tuple[Path, Path]:
        """Write the model of a finished run, and a card that says what it is.

        Args:
            path: of the model, which ends in ``.safetensors``; the card goes beside it.
            run: its name; None for the latest.

        Returns:
            Both paths.

        Raises:
            UserError: there is no such run, or no such network any more; or a file is there already.
        """
        known = self.runs()
        if run is None and not known:
            raise DataError(self.folder, "has no finished run: expected one to export the model of")
        kept = kept_run(self.folder / RUNS, run or known[-1])
        data = self.settings.data
        tensors = tensors_of(
            kept, data.load() if data.own else None, Path(data.folder) if data.folder else None
        )
        card = card_of(kept, self.spending.entries(), self.settings, self.limits.delta)
        return export_model(path, tensors, card)

    def spent(self, delta: float | None = None) -> Cost:
        """What the site has spent in all.

        Args:
            delta: at which it is counted; None for that of its limits.
        """
        return cost_of(self.spending.entries(), delta or self.limits.delta or USUAL_DELTA)

    def state(self) -> bytes:
        """What `store` stored last; empty before that.

        Raises:
            DataError: it is damaged, or remembers more of the ledger than there is.
        """
        return self._stored()[1]

    @property
    def generation(self) -> int:
        """How often a state was stored."""
        return self._stored()[0]

    def store(self, state: bytes) -> None:
        """Put a state in place of the last one; when this returns it is on the disk.

        Raises:
            DataError: it cannot be written.
        """
        generation = self._stored()[0] + 1
        head = _MAGIC + _HEAD.pack(generation, len(self.spending.entries()))
        replace(self.folder / STATE, head + _digest(head, state) + state)

    def forget(self) -> None:
        """Remove the state: the site can join the next run, and not go on with this one.

        Raises:
            DataError: it cannot be removed.
        """
        with access(self.folder / STATE, "removed"):
            (self.folder / STATE).unlink(missing_ok=True)

    def _stored(self) -> tuple[int, bytes]:
        path = self.folder / STATE
        if not path.exists():
            return 0, b""
        content = read(path)
        size = len(_MAGIC) + _HEAD.size
        head, digest, state = (
            content[:size],
            content[size : size + _DIGEST_BYTES],
            content[size + _DIGEST_BYTES :],
        )
        if not head.startswith(_MAGIC) or len(head) < size or digest != _digest(head, state):
            raise DataError(path, "is damaged: remove it, and the site can join the next run")
        generation, lines = _HEAD.unpack(head[len(_MAGIC) :])
        there = len(self.spending.entries())
        if there < lines:
            raise DataError(
                self.folder / LEDGER,
                f"has {there} lines and had {lines}: an old copy was put back; put the newest back",
            )
        return generation, state


def load_identity(path: Path) -> Identity:
    """The identity in a file, as the server keeps its own.

    Raises:
        DataError: it is none, or others than its owner can read it.
    """
    check_private(path)
    return Identity.from_pem(read(path), path)


def load_roster(path: Path) -> Roster:
    """The roster in a file.

    Raises:
        DataError: it is none.
    """
    return Roster.from_toml(read_text(path), path)


def _digest(head: bytes, state: bytes) -> bytes:
    return hashlib.blake2b(head + state, digest_size=_DIGEST_BYTES).digest()


def _check_roster(path: Path, roster: Roster | None, settings: SiteSettings, identity: Identity) -> None:
    """Refuse a roster in which the site is not who it is."""
    if roster is None:
        return
    there = roster.public(settings.number)
    if there is None:
        raise DataError(path, f"has no site {settings.number}, which this is: expected all sites in it")
    if there != identity.public:
        found = roster.number_of(identity.public)
        whose = "nobody has" if found is None else f"site {found} has"
        raise DataError(path, f"site {settings.number} has another key than this site's, which {whose} there")
    if roster.name(settings.number) != settings.name:
        raise DataError(
            path,
            f"site {settings.number} is named {roster.name(settings.number)!r} there and {settings.name!r} here",
        )
