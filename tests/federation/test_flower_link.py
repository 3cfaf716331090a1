import pytest

pytest.importorskip("flwr", reason="needs discreet[flower]")


import json
import logging
import os
import subprocess
import sys

from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict

from discreet.errors import DataError, RunFolderError
from discreet.federation import resident
from discreet.federation.flower import client, server
from discreet.federation.flower.client import SAID, STEP, WHO, packed, unpacked
from discreet.federation.flower.link import ASK_AGAIN, GRACE, FlowerLink
from discreet.federation.flower.server import play
from discreet.federation.identity import Identity
from discreet.federation.link import Failure


@pytest.fixture(autouse=True)
def server_side(monkeypatch):
    """Messages are made as in the process of a ServerApp."""
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(identity, name, 1)


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        assert seconds > 0
        self.now += seconds


class FakeGrid:
    """Flower's grid with nodes in this process: each answers after so many seconds, or never."""

    def __init__(self, clock):
        self.clock = clock
        self.sites: dict[int, int] = {}
        self.answer = {}
        self.after: dict[int, float] = {}
        self.refused: set[int] = set()
        self.pushed = []
        self.waiting = {}

    def add(self, node, site, answer=lambda body: body, after=0.0):
        self.sites[node], self.answer[node], self.after[node] = site, answer, after

    def get_node_ids(self):
        return list(self.sites)

    def push_messages(self, messages):
        assert isinstance(messages, list)
        numbers = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.pushed.append((message.metadata.message_type, node, message.metadata.ttl))
            if node in self.refused:
                numbers.append(None)
                continue
            number = f"message {len(self.pushed)}"
            message.metadata.__dict__["_message_id"] = number
            self.waiting[number] = (message, self.clock() + self.after[node])
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids):
        replies = []
        for number in message_ids:
            message, when = self.waiting.get(number, (None, None))
            if message is None or when > self.clock():
                continue
            del self.waiting[number]
            replies.append(self.reply(message))
        return replies

    def reply(self, message):
        node = message.metadata.dst_node_id
        if message.metadata.message_type == WHO:
            site = self.sites[node]
            facts = {"number": site} if site is not None else {"cause": "unreachable"}
            return Message(RecordDict({SAID: ConfigRecord(facts)}), reply_to=message)
        answer = self.answer[node](unpacked(message.content))
        if isinstance(answer, int):
            return Message(Error(answer, "a secret text of an exception"), reply_to=message)
        if isinstance(answer, dict):
            return Message(RecordDict({SAID: ConfigRecord(answer)}), reply_to=message)
        if isinstance(answer, RecordDict):
            return Message(answer, reply_to=message)
        return Message(packed(answer), reply_to=message)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def grid(clock):
    return FakeGrid(clock)


@pytest.fixture
def link(grid, clock):
    return FlowerLink(grid, clock=clock, sleep=clock.sleep)


def test_every_site_gets_its_own_bytes_and_its_answer_comes_back(grid, link):
    for site in range(3):
        grid.add(900 - site, site, lambda body, site=site: body + bytes([site]))
    assert link.present() == {0, 1, 2}
    found = link.exchange({2: b"c", 0: b"a", 1: b"b"}, 10.0)
    assert found == {0: b"a\0", 1: b"b\1", 2: b"c\2"}
    assert list(found) == [0, 1, 2]


def test_nodes_are_asked_once_which_site_they_have(grid, link):
    grid.add(10, 0)
    assert link.present() == link.present() == {0}
    grid.add(11, 1)
    assert link.present() == {0, 1}
    assert [(kind, node) for kind, node, _ in grid.pushed] == [(WHO, 10), (WHO, 11)]


def test_a_slow_site_is_a_timeout_at_the_deadline_and_not_later(grid, link, clock):
    grid.add(10, 0)
    grid.add(11, 1)
    link.present()
    grid.after[11] = 100.0
    begun = clock.now
    assert link.exchange({0: b"a", 1: b"b"}, 7.0) == {0: b"a", 1: Failure("timeout")}
    assert clock.now - begun == pytest.approx(7.0)
    assert {ttl for kind, _, ttl in grid.pushed if kind == STEP} == {7.0 + GRACE}


def test_it_does_not_wait_when_all_have_answered(grid, link, clock):
    grid.add(10, 0, after=1.0)
    link.present()
    begun = clock.now
    link.exchange({0: b"a"}, 100.0)
    assert 1.0 <= clock.now - begun < 1.5


def test_it_says_of_each_site_when_its_answer_is_there(grid, link, clock):
    for site, after in enumerate((0.0, 2.0, 4.0, 100.0)):
        grid.add(10 + site, site, after=after)
    grid.answer[11] = lambda body: 8  # an error is no answer
    link.present()
    begun, came = clock.now, {}
    link.exchange(dict.fromkeys(range(4), b"a"), 10.0, lambda site: came.setdefault(site, clock.now - begun))
    assert came.keys() == {0, 2}
    assert came[0] == 0.0 and 4.0 <= came[2] <= 4.5


@pytest.mark.parametrize(
    ("code", "cause"),
    [(1, "crashed"), (2, "crashed"), (3, "timeout"), (5, "unreachable"), (8, "crashed"), (99, "crashed")],
)
def test_flowers_errors_are_failures_without_their_text(grid, link, code, cause):
    grid.add(10, 0, lambda _: code)
    link.present()
    (failure,) = link.exchange({0: b"a"}, 5.0).values()
    assert failure == Failure(cause, f"Flower's error {code}")


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ({"cause": "malformed"}, "malformed"),
        ({"cause": "crashed"}, "crashed"),
        ({"cause": "unreachable"}, "unreachable"),
        ({"cause": "a secret"}, "malformed"),
        ({"number": 3}, "malformed"),
        (RecordDict(), "malformed"),
        (RecordDict({"body": ConfigRecord({"body": 1})}), "malformed"),
        (RecordDict({"body": MetricRecord({"body": 1})}), "malformed"),
        (b"", "malformed"),
    ],
)
def test_what_a_relay_says_is_one_of_a_few_constants(grid, link, said, cause):
    grid.add(10, 0, lambda _: said)
    link.present()
    (failure,) = link.exchange({0: b"a"}, 5.0).values()
    assert isinstance(failure, Failure)
    assert failure.cause == cause
    assert "secret" not in failure.detail


def test_a_site_that_nobody_knows_or_that_has_gone_is_unreachable(grid, link):
    grid.add(10, 0)
    grid.add(11, 1)
    link.present()
    del grid.sites[11]
    assert link.present() == {0}
    assert link.exchange({0: b"a", 1: b"b", 2: b"c"}, 5.0) == {
        0: b"a",
        1: Failure("unreachable"),
        2: Failure("unreachable"),
    }


def test_a_message_that_flower_does_not_take_is_unreachable(grid, link):
    grid.add(10, 0)
    link.present()
    grid.refused.add(10)
    (failure,) = link.exchange({0: b"a"}, 5.0).values()
    assert failure.cause == "unreachable"


def test_a_second_node_of_the_same_site_is_not_listened_to_while_the_first_answers(grid, link, caplog):
    grid.add(10, 0, lambda _: b"first")
    link.present()
    grid.add(11, 0, lambda _: b"second")
    assert link.present() == {0}
    assert "node 11 claims to be site 0" in caplog.text
    assert link.exchange({0: b"a"}, 5.0) == {0: b"first"}
    del grid.sites[10]  # the first has gone: from its next turn on the second is the site
    link.present()
    link._clock.sleep(ASK_AGAIN)
    assert link.present() == {0}
    assert link.exchange({0: b"a"}, 5.0) == {0: b"second"}


def test_a_node_that_squats_on_a_sites_number_gives_way_to_the_one_that_can_sign(grid, link):
    grid.add(10, 0, lambda _: b"not signed by the site")
    link.present()
    grid.add(11, 0, lambda _: b"signed")
    link.present()
    assert link.exchange({0: b"a"}, 5.0) == {0: b"not signed by the site"}
    link.doubt(0)  # as the server does that has looked at the signature
    assert link.present() == {0}
    assert link.exchange({0: b"a"}, 5.0) == {0: b"signed"}


@pytest.mark.parametrize("said", [{"cause": "malformed"}, b"", 2])
def test_a_node_that_does_not_answer_as_a_site_gives_way_to_another(grid, link, said):
    grid.add(10, 0, lambda _: said)
    link.present()
    grid.add(11, 0, lambda _: b"signed")
    link.present()
    assert isinstance(link.exchange({0: b"a"}, 5.0)[0], Failure)
    assert link.exchange({0: b"a"}, 5.0) == {0: b"signed"}
    link.doubt(0)  # in turn: the first may be the right one after all
    assert isinstance(link.exchange({0: b"a"}, 5.0)[0], Failure)


def test_a_site_without_a_rival_keeps_its_node_whatever_it_answers(grid, link):
    grid.add(10, 0, lambda _: b"")
    link.present()
    link.exchange({0: b"a"}, 5.0)
    link.doubt(0)
    link.doubt(1)
    assert link.present() == {0} and link.exchange({0: b"a"}, 5.0)[0].cause == "malformed"


def test_a_node_without_a_site_is_asked_again_after_a_while(grid, link, clock):
    grid.add(10, None)
    assert link.present() == link.present() == frozenset()
    assert len(grid.pushed) == 1
    clock.sleep(ASK_AGAIN)
    grid.sites[10] = 4
    assert link.present() == {4}


@pytest.mark.parametrize("number", [-1, True, "0"])
def test_a_number_that_is_none_is_no_site(grid, link, number):
    grid.add(10, number)
    assert link.present() == frozenset()


def relayed(folder, kind, content):
    """What the app at a node replies."""
    message = Message(content, dst_node_id=10, message_type=kind, ttl=30.0)
    message.metadata.__dict__["_message_id"] = "one"
    context = Context(1, 10, {"site": str(folder)} if folder else {}, RecordDict(), {})
    return client.client_app()(message, context)


def test_the_relay_hands_bytes_over_and_says_who_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "_opened", lambda _: resident.Acting(5, lambda body: body[::-1]))
    said = relayed(tmp_path, WHO, RecordDict())
    assert dict(said.content[SAID]) == {"number": 5}
    body = bytes(range(256)) * 1000
    assert unpacked(relayed(tmp_path, STEP, packed(body)).content) == body[::-1]


def test_the_relay_without_a_site_says_so_in_a_constant(tmp_path):
    for folder in (None, tmp_path / "none"):
        for kind in (WHO, STEP):
            assert dict(relayed(folder, kind, packed(b"a")).content[SAID]) == {"cause": "unreachable"}


@pytest.mark.parametrize("size", [1, client.FEW, client.FEW + 1, 3_000_000])
def test_packed_bytes_are_hardly_longer_than_the_bytes(size):
    body = os.urandom(size)
    content = packed(body)
    assert unpacked(content) == body
    assert content["body"].count_bytes() <= len(body) + 100


def test_the_servers_identity_must_be_its_owners_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    key, asked = tmp_path / "identity.pem", tmp_path / "experiment.toml"
    key.write_bytes(Identity.generate().to_pem())
    key.chmod(0o644)
    asked.write_text("")
    with pytest.raises(DataError, match="chmod 600"):
        play(None, {"experiment": str(asked), "sites": 0, "identity": str(key), "roster": ""})


def test_the_servers_log_says_how_it_ended(tmp_path, monkeypatch):
    def locked(grid, asked):
        raise RunFolderError("runs/first", "is being written by another process")

    ours = logging.getLogger("discreet")
    monkeypatch.setattr(server, "end_when_orphaned", lambda last: None)  # it would end this process
    monkeypatch.setattr(server, "play", locked)
    monkeypatch.setattr(ours, "handlers", [])
    monkeypatch.setattr(ours, "level", ours.level)
    asked = {"log": str(tmp_path / "log"), "ending": str(tmp_path / "ending")}
    with pytest.raises(RunFolderError):
        server.main(None, Context(1, 1, {}, RecordDict(), asked))
    for handler in ours.handlers:
        handler.close()
    assert "ERROR ended: runs/first: is being written by another process" in (tmp_path / "log").read_text()


def test_a_server_whose_superlink_is_gone_says_so_unless_it_has_ended(tmp_path, monkeypatch):
    ours, gone, ending = logging.getLogger("discreet"), [], tmp_path / "ending"
    monkeypatch.setattr(server, "end_when_orphaned", gone.append)

    def orphaned(grid, asked):
        assert json.loads(ending.read_text())["ended"] == "running"
        gone[0]()
        said.append(json.loads(ending.read_text()))
        raise RunFolderError("runs/first", "is being written by another process")

    said = []
    monkeypatch.setattr(server, "play", orphaned)
    monkeypatch.setattr(ours, "handlers", [])
    monkeypatch.setattr(ours, "level", ours.level)
    asked = {"log": str(tmp_path / "log"), "ending": str(ending)}
    with pytest.raises(RunFolderError):
        server.main(None, Context(1, 1, {}, RecordDict(), asked))
    last = ending.read_text()
    gone[0]()
    for handler in ours.handlers:
        handler.close()
    assert said == [{"ended": "failed", "error": server.GONE, "usage": False}]
    assert ending.read_text() == last and "written by another process" in last
    assert (tmp_path / "log").read_text().count(server.GONE) == 1


def test_the_relay_is_light():
    program = (
        "import sys, discreet.federation.flower.client\n"
        "print(sorted({'torch', 'pydantic', 'sklearn', 'scipy'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
