"""A site's folder: its owner's alone, whole after any crash, and never quietly an old one."""

import os
import stat

import numpy as np
import pytest
import torch

from discreet.cohort import Examples
from discreet.data.dataset import Dataset
from discreet.errors import ConfigError, DataError
from discreet.federation import files
from discreet.federation import home as home_module
from discreet.federation.home import Home, load_identity, load_roster
from discreet.federation.identity import Identity
from discreet.federation.limits import Limits
from discreet.federation.roster import Member, Roster
from discreet.federation.settings import SiteData, SiteSettings
from discreet.federation.spending import Entry
from discreet.privacy.releases import Gaussian, Poisson, Released

SETTINGS = SiteSettings(number=1, name="hospital-b")
IDENTITY = Identity.from_secret(b"b" * 32)
ROSTER = Roster(
    Identity.from_secret(b"s" * 32).public,
    (
        Member(0, "hospital-a", Identity.from_secret(b"a" * 32).public),
        Member(1, "hospital-b", IDENTITY.public),
    ),
)


@pytest.fixture
def home(tmp_path):
    return Home.create(tmp_path / "site", SETTINGS, identity=IDENTITY)


def spend(home, round=1):
    home.spending.append(Entry(bytes(16), 1, round, 1, Released(Poisson(1.0), Gaussian(1.0))))


def test_what_is_made_can_be_opened(tmp_path):
    limits = Limits(schemes=["fedavg"], epsilon=1.0, delta=1e-6)
    settings = SiteSettings(
        number=1,
        name="hospital-b",
        device="cpu",
        data=SiteData(source="a.b:load", options={"path": "x.csv", "n": 3}, features=[0, 2], folder="/data"),
    )
    made = Home.create(tmp_path / "deep" / "site", settings, limits, ROSTER, IDENTITY)
    again = Home.open(tmp_path / "deep" / "site")
    for found in (made, again):
        assert (found.identity, found.settings, found.limits, found.roster) == (
            IDENTITY,
            settings,
            limits,
            ROSTER,
        )
        assert found.spending.entries() == ()
        assert (found.state(), found.generation) == (b"", 0)


def test_each_site_gets_a_key_of_its_own(tmp_path):
    one, other = (Home.create(tmp_path / name, SETTINGS) for name in ("a", "b"))
    assert one.identity != other.identity
    assert Home.open(tmp_path / "a").identity == one.identity


def test_everything_in_it_is_its_owners_alone(home):
    spend(home)
    home.store(b"state")
    assert stat.S_IMODE(home.folder.stat().st_mode) == 0o700
    for path in home.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


@pytest.mark.parametrize(("mask", "mode"), [(0o000, 0o600), (0o022, 0o600), (0o077, 0o600)])
def test_whatever_the_umask(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        home = Home.create(tmp_path / "site", SETTINGS)
        home.store(b"x")
        spend(home)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in home.folder.iterdir()} == {mode}


@pytest.mark.parametrize("name", [".", "identity.pem", "state", "ledger.jsonl"])
@pytest.mark.parametrize("bits", [0o040, 0o004, 0o020, 0o001])
def test_what_others_have_access_to_is_refused_with_the_right_chmod(home, name, bits):
    spend(home)
    home.store(b"state")
    path = home.folder / name
    path.chmod(stat.S_IMODE(path.stat().st_mode) | bits)
    right = "700" if name == "." else "600"
    with pytest.raises(DataError, match=f"chmod {right} {path}$") as caught:
        Home.open(home.folder)
    assert "\n" not in str(caught.value)
    path.chmod(int(right, 8))
    Home.open(home.folder)


def test_a_folder_that_others_can_enter_is_not_moved_into(tmp_path):
    (tmp_path / "site").mkdir(mode=0o755)
    with pytest.raises(DataError, match="chmod 700"):
        Home.create(tmp_path / "site", SETTINGS)
    assert list((tmp_path / "site").iterdir()) == []


def test_another_users_folder_is_refused(home, monkeypatch):
    monkeypatch.setattr(files.os, "geteuid", lambda: 12345)
    with pytest.raises(DataError, match="belongs to another user"):
        Home.open(home.folder)


def test_nothing_is_overwritten(home):
    before = (home.folder / "identity.pem").read_bytes()
    with pytest.raises(DataError, match=r"identity\.pem: is there already"):
        Home.create(home.folder, SETTINGS)
    assert (home.folder / "identity.pem").read_bytes() == before


@pytest.mark.parametrize("missing", ["identity.pem", "site.toml", "limits.toml"])
def test_what_is_no_sites_folder_is_refused(home, missing):
    (home.folder / missing).unlink()
    with pytest.raises(DataError, match=r"is no site's folder|cannot be read: No such file"):
        Home.open(home.folder)


def test_a_roster_can_be_put_there_later(home):
    assert home.roster is None
    assert home.pin(ROSTER).roster == ROSTER
    assert Home.open(home.folder).roster == ROSTER


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            SiteSettings(number=0, name="hospital-a"),
            "site 0 has another key than this site's, which site 1 has there",
        ),
        (SiteSettings(number=7, name="hospital-b"), "has no site 7, which this is"),
        (
            SiteSettings(number=1, name="hospital-c"),
            "site 1 is named 'hospital-b' there and 'hospital-c' here",
        ),
    ],
)
def test_a_site_that_is_not_the_one_in_its_roster_does_not_start(tmp_path, settings, complaint):
    with pytest.raises(DataError, match=complaint):
        Home.create(tmp_path / "site", settings, roster=ROSTER, identity=IDENTITY)
    assert not (tmp_path / "site").exists()


def test_a_roster_of_others_is_not_pinned(tmp_path):
    home = Home.create(tmp_path / "site", SETTINGS)
    with pytest.raises(DataError, match="which nobody has there"):
        home.pin(ROSTER)
    assert not (home.folder / "roster.toml").exists()


def test_the_last_state_is_the_one_that_counts(home):
    for count, state in enumerate([b"one", b"", bytes(1000), b"four"], start=1):
        home.store(state)
        assert (home.state(), home.generation) == (state, count)
        assert Home.open(home.folder).state() == state
    home.forget()
    assert (home.state(), home.generation) == (b"", 0)
    home.forget()


def test_a_servers_files(home, tmp_path):
    (tmp_path / "roster.toml").write_text(ROSTER.to_toml())
    assert load_roster(tmp_path / "roster.toml") == ROSTER
    key = home.folder / "identity.pem"
    assert load_identity(key) == IDENTITY
    key.chmod(0o644)
    with pytest.raises(DataError, match=f"can be read by others than its owner: chmod 600 {key}"):
        load_identity(key)
    with pytest.raises(DataError, match="cannot be read"):
        load_identity(tmp_path / "nowhere.pem")


class Stopped(BaseException):
    pass


@pytest.mark.parametrize("point", ["write", "fsync", "replace"])
def test_a_crash_while_a_state_is_stored_leaves_the_one_before(home, monkeypatch, point):
    home.store(b"before")
    real = os.write

    def stop(handle, content=b""):
        if point == "write":
            real(handle, content[:5])
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(files.os, point, stop)
        patch.setattr(files.Path, "unlink", lambda path: None)  # a killed process tidies nothing up
        with pytest.raises(Stopped):
            home.store(b"after, and longer")
    assert Home.open(home.folder).state() == b"before"
    home.store(b"after")
    assert Home.open(home.folder).state() == b"after"


def test_a_state_is_on_the_disk_before_store_returns(home, monkeypatch):
    order = []
    real_sync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda handle: (order.append("sync"), real_sync(handle))[1])
    monkeypatch.setattr(
        files.os, "replace", lambda one, two: (order.append("name"), real_replace(one, two))[1]
    )
    home.store(b"x")
    assert order == ["sync", "name", "sync"]


def test_a_damaged_state_is_noticed_wherever_it_is(home):
    home.store(b"secret")
    content = (home.folder / "state").read_bytes()
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        (home.folder / "state").write_bytes(changed)
        with pytest.raises(DataError, match="state: is damaged"):
            home.state()
    for cut in range(len(content)):
        (home.folder / "state").write_bytes(content[:cut])
        with pytest.raises(DataError, match="state: is damaged"):
            home.state()


def test_a_ledger_that_is_older_than_the_state_is_noticed(home):
    spend(home, 1)
    old = {name: (home.folder / name).read_bytes() for name in ("ledger.jsonl", "ledger.jsonl.next")}
    spend(home, 2)
    home.store(b"x")
    for name, content in old.items():
        (home.folder / name).write_bytes(content)
    with pytest.raises(DataError, match="has 1 lines and had 2: an old copy was put back"):
        Home.open(home.folder).state()
    for name in old:
        (home.folder / name).unlink()
    with pytest.raises(DataError, match="has 0 lines and had 2"):
        Home.open(home.folder).state()


def test_a_crash_between_ledger_and_state_stops_nothing(home):
    home.store(b"x")
    spend(home)
    assert Home.open(home.folder).state() == b"x"


class Echo:
    """A site that counts in its state, and looks at what is on the disk while it works."""

    def __init__(self, folder):
        self.folder, self.seen = folder, []

    def step(self, state, message):
        self.seen.append(state)
        if message == b"bad":
            raise KeyError("bad")
        return state + message, b"reply to " + message


@pytest.fixture
def unfinished(monkeypatch):
    """No run is ever over: what is kept of one is another test's."""
    monkeypatch.setattr(home_module, "kept_model", lambda state, number: None)


@pytest.mark.usefixtures("unfinished")
def test_the_state_is_stored_before_the_reply_leaves(home):
    site = Echo(home.folder)
    assert home.answer(site, b"a") == b"reply to a"
    assert Home.open(home.folder).state() == b"a"
    assert home.answer(site, b"b") == b"reply to b"
    with pytest.raises(KeyError):
        home.answer(site, b"bad")
    assert home.state() == b"ab"
    assert site.seen == [b"", b"a", b"ab"]


def test_no_reply_without_a_stored_state(home, monkeypatch):
    def full(handle, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "write", full)
    with pytest.raises(DataError, match="state: cannot be written: No space left"):
        home.answer(Echo(home.folder), b"a")
    monkeypatch.undo()
    assert home.state() == b""


def test_the_site_is_built_from_the_folder(tmp_path):
    data = SiteData(source="test_home:hospital", options={"count": 5}, features=[1, 0])
    settings = SiteSettings(number=1, name="hospital-b", data=data)
    site = Home.create(tmp_path / "site", settings, Limits(minimum_cohort=4), ROSTER, IDENTITY).site()
    assert (site.number, site.identity, site.roster) == (1, IDENTITY, ROSTER)
    assert site.limits.minimum_cohort == 4
    assert site.holdings.data.features == (1, 0)
    assert len(site.holdings.data.load().train) == 5


def test_a_site_for_trying_out_has_no_data_of_its_own(home):
    assert home.site().holdings.data is None


def hospital(count, wrong=False):
    if wrong:
        raise LookupError("no such\npatient")
    inputs = torch.from_numpy(np.ones((count, 2), np.float32))
    examples = Examples(inputs, torch.zeros(count, dtype=torch.int64))
    return Dataset("hospital", "table", examples, examples, ("ill", "well"))


def test_a_table_of_the_sites_own(tmp_path):
    (tmp_path / "own.csv").write_text(
        "a,b,ill\n" + "".join(f"{n}.5,{n * n}.0,{'yn'[n % 2]}\n" for n in range(20))
    )
    data = SiteData(source="table", options={"path": str(tmp_path / "own.csv"), "target": "ill"}).load()
    assert (len(data.train), len(data.test), data.shape, data.classes) == (16, 4, (2,), ("n", "y"))


@pytest.mark.parametrize(
    ("source", "options", "complaint"),
    [
        ("test_home:hospital", {"count": 3, "wrong": True}, "its loader fails: LookupError: no such patient"),
        ("test_home:hospital", {"number": 3}, "its loader fails: TypeError"),
        ("test_home:nothing", {}, "its loader fails: AttributeError"),
        ("no_such_module_at_all:load", {}, "its loader fails: ModuleNotFoundError"),
        ("test_home:hospital", {"count": 0}, "has no training examples"),
        ("builtins:dict", {}, "returned a dict: expected a discreet.Dataset"),
        ("table", {"way": "x.csv"}, r"unknown key 'data\.options\.way'"),
        ("table", {"path": "/nowhere/x.csv", "target": "y"}, "/nowhere/x.csv"),
    ],
)
def test_a_loader_that_fails_says_so_in_one_line(source, options, complaint):
    with pytest.raises((DataError, ConfigError), match=complaint) as caught:
        SiteData(source=source, options=options).load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no number"),
        ("number = 1", "has no name"),
        ("number = ", "is not TOML"),
        ("number = -1\nname = 'a'", r"site\.number = -1"),
        ("number = 1\nname = 'a/b'", "name 'a/b'"),
        ("number = 1\nname = 'a'\nnumbr = 2", "did you mean site.number"),
        ("number = 1\nname = 'a'\ndevice = 'tpu'", r"site\.device"),
        ("number = 1\nname = 'a'\ndata = 3", "a section"),
        ("number = 1\nname = 'a'\n[data]\nsource = 'tabel'", "did you mean 'table'"),
        ("number = 1\nname = 'a'\n[data]\npath = 'x'", "unknown key 'data.path'"),
        ("number = 1\nname = 'a'\n[data]\noptions = {a = 1}", r"data\.options = .*nothing"),
        ("number = 1\nname = 'a'\n[data]\nfeatures = [1]", r"data\.features = .*nothing"),
    ],
)
def test_what_is_wrong_in_site_toml_is_said_in_one_line(text, complaint):
    with pytest.raises((DataError, ConfigError), match=complaint) as caught:
        SiteSettings.from_toml(text, "site.toml")
    assert "\n" not in str(caught.value)
