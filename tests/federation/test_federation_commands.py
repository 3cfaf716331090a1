"""``discreet certificates``, ``roster``, ``site`` and ``node``."""

import dataclasses
import os
import signal
import stat
import tomllib

import pytest

from discreet.federation.home import Home
from discreet.federation.identity import Identity
from discreet.federation.resident import SOCKET, WHO, ask
from discreet.federation.roster import Roster


def init(command, folder, number, name, *more):
    return command.run("site", "init", name, f"--number={number}", f"--name={name}", *more, cwd=folder)


def test_from_certificates_to_pinned_sites(command, tmp_path):
    made = command.run(
        "certificates", "server", "--server", "localhost,127.0.0.1", "--sites", "a,b", cwd=tmp_path
    )
    assert (made.code, made.err) == (0, "")
    names = {"ca.pem", "ca.key", "server.pem", "server.key", "identity.pem"}
    nodes = {"a.key", "a.pub", "b.key", "b.pub"}
    assert {file.name for file in (tmp_path / "server").iterdir()} == names | {"nodes"}
    assert {file.name for file in (tmp_path / "server" / "nodes").iterdir()} == nodes
    assert stat.S_IMODE((tmp_path / "server" / "identity.pem").stat().st_mode) == 0o600
    server = Identity.from_pem((tmp_path / "server" / "identity.pem").read_bytes())
    assert f"server: {server.fingerprint}" in made.out

    for number, name in enumerate("ab"):
        ended = init(command, tmp_path, number, name)
        assert (ended.code, ended.err) == (0, "")
        assert Home.open(tmp_path / name).identity.fingerprint in ended.out
    ended = command.run(
        "roster",
        "roster.toml",
        "b/member.toml",
        "a/member.toml",
        "--identity=server/identity.pem",
        cwd=tmp_path,
    )
    assert (ended.code, ended.err) == (0, "")
    roster = Roster.from_toml((tmp_path / "roster.toml").read_text())
    assert roster.server == server.public
    assert [site.name for site in roster.sites] == ["a", "b"]
    for fingerprint in (roster.fingerprint, server.fingerprint, *(site.fingerprint for site in roster.sites)):
        assert fingerprint in ended.out
    for name in "ab":
        pinned = command.run("site", "pin", name, "roster.toml", cwd=tmp_path)
        assert (pinned.code, pinned.err) == (0, "") and pinned.out.startswith(ended.out)
        assert "In place of" not in pinned.out
        assert Home.open(tmp_path / name).roster == roster
    other = dataclasses.replace(roster, sites=roster.sites[:1])
    (tmp_path / "other.toml").write_text(other.to_toml())
    pinned = command.run("site", "pin", "a", "other.toml", cwd=tmp_path)
    assert f"In place of the roster of 2 sites that was here: {roster.fingerprint}" in pinned.out
    pinned = command.run("site", "pin", "b", "other.toml", cwd=tmp_path)
    assert (pinned.code, pinned.err.count("\n")) == (2, 1)
    assert "other.toml: has no site 1, which this is" in pinned.err


def test_nothing_is_overwritten(command, tmp_path):
    for _ in range(2):
        made = command.run("certificates", "server", "--server", "localhost", cwd=tmp_path)
        site = init(command, tmp_path, 0, "a")
    assert made.code == site.code == 2
    assert made.err.startswith("discreet: server") and site.err.startswith("discreet: a")
    assert made.err.count("\n") == site.err.count("\n") == 1


def test_a_site_is_told_where_its_data_is_and_what_it_allows(command, tmp_path):
    (tmp_path / "limits.toml").write_text('schemes = ["cgd"]\nminimum_cohort = 5\n')
    options = ("--option", "path=patients.csv", "--option", "rows=3", "--limits", "limits.toml")
    ended = init(command, tmp_path, 4, "a", "--source", "hospital:load", *options)
    assert (ended.code, ended.err) == (0, "")
    home = Home.open(tmp_path / "a")
    assert home.settings.number == 4
    assert home.settings.data.source == "hospital:load"
    assert home.settings.data.options == {"path": "patients.csv", "rows": 3}
    assert (home.limits.schemes, home.limits.minimum_cohort) == (["cgd"], 5)
    member = tomllib.loads((tmp_path / "a" / "member.toml").read_text())["site"]
    assert member == [
        {
            "number": 4,
            "name": "a",
            "public_key": home.identity.public.hex(),
            "fingerprint": home.identity.fingerprint,
        }
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("site", "none"), "none: is no site's folder"),
        (("site", "act", "none"), "none: is no site's folder"),
        (("site", "pin", "none", "roster.toml"), "roster.toml: cannot be read"),
        (("site", "init", "a", "--number=0", "--name=a", "--option=path"), "--option"),
        (("certificates", "d", "--server", "no host"), "no host"),
        (("roster", "r.toml", "m.toml", "--identity=none.pem"), "none.pem: cannot be read"),
    ],
)
def test_mistakes_are_told_in_one_line(command, tmp_path, arguments, said):
    ended = command.run(*arguments, cwd=tmp_path)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("discreet: ") and said in ended.err and ended.err.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_site_acts_until_a_signal_ends_it(command, tmp_path, number):
    assert init(command, tmp_path, 3, "a").code == 0
    running = command.start("site", "a", cwd=tmp_path)

    def nobody(folder):
        raise AssertionError

    running.wait_for(running.err)  # it says that it acts
    assert ask(tmp_path / "a", WHO, b"", 10.0, nobody) == b"3"
    second = command.run("site", "a", cwd=tmp_path)
    assert second.code == 2
    assert "another process acts for this site" in second.err
    os.kill(running.pid, number)
    ended = running.end()
    assert ended.code == 0
    assert "acts for site 3" in ended.err and "ends" in ended.err
    assert not (tmp_path / "a" / SOCKET).exists()
