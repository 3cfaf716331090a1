"""What a site's own log says of every message."""

import re
from functools import partial

import pytest
from parties import ALLOWED, BLOBS, SERVER, Party, dealt, experiment, run

from discreet.config import from_table
from discreet.errors import ConfigError, DataError, RemoteProtocolError, UserError
from discreet.federation.acting import open_site
from discreet.federation.holdings import OwnData
from discreet.federation.home import Home
from discreet.federation.limits import Limits
from discreet.federation.link import MemoryLink
from discreet.federation.server import federate
from discreet.federation.settings import SiteData, SiteSettings
from discreet.federation.step import reason
from discreet.schemes import ConfinedGradientDescent

LINE = re.compile(
    r"run (?P<run>[0-9a-f]{8}) round (?P<round>\d+) attempt 0: (?P<asked>.+): (?P<became>answered|refused .+); "
    r"(?P<down>\d+) bytes in, (?P<up>\d+) bytes out, \d+\.\d{3} s"
)


def blobs():
    return BLOBS


def sites(folder, limits=ALLOWED):
    """Four sites that have all blobs each, as their own processes would open them."""
    data = SiteData(source="test_journal:blobs")
    for number in range(4):
        settings = SiteSettings(number=number, name=f"site-{number}", data=data)
        Home.create(folder / str(number), settings, limits)
    return {number: open_site(folder / str(number)).step for number in range(4)}


def lines(caplog):
    found = [LINE.fullmatch(text) for text in caplog.messages if "bytes in" in text]
    assert all(found), caplog.messages
    return found


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            experiment("dp-signfed", rounds=1),
            [
                (0, "hello"),
                (1, "begin, masking, advertise"),
                (1, "masking, share"),
                (1, "work of phase 0, masked"),
                (1, "masking, unmask"),
                (1, "end"),
            ],
        ),
        (
            experiment(ConfinedGradientDescent(learning_rate=0.1), rounds=1, secure="additive"),
            [
                (0, "hello"),
                (1, "begin, work of phase 0, additive"),
                (1, "holding of phase 0"),
                (1, "evaluate"),
                (1, "end"),
            ],
        ),
        (
            experiment("fedavg", rounds=1),
            [(0, "hello"), (1, "begin, work of phase 0, in the clear"), (1, "end")],
        ),
    ],
)
def test_a_line_for_every_message_says_what_was_asked_and_what_it_took(tmp_path, caplog, asked, said):
    caplog.set_level("INFO", "discreet.federation.journal")
    link = MemoryLink(sites(tmp_path))
    found = federate(asked, link, sites=4, data=BLOBS, identity=SERVER, out=tmp_path / "run")
    written = lines(caplog)
    assert list(dict.fromkeys((int(line["round"]), line["asked"]) for line in written)) == said
    assert {line["became"] for line in written} == {"answered"}
    assert len({line["run"] for line in written}) == 1
    summed = [line for line in written if line["asked"] not in ("hello", "evaluate", "end")]
    assert sum(int(line["up"]) for line in summed) == found.metrics[0]["uplink_bytes"]
    assert sum(int(line["down"]) for line in summed) == found.metrics[0]["downlink_bytes"]


def test_a_refusal_is_a_warning_with_its_cause_and_its_reason(tmp_path, caplog):
    link = MemoryLink(sites(tmp_path, Limits(minimum_cohort=5)))
    with pytest.raises(UserError, match="refused, limits"):
        run(experiment("fedavg"), {}, link=link, sites=4, rehearse=False)
    line = lines(caplog)[0]
    assert line["asked"] == "hello"
    assert line["became"].startswith("refused (limits): ") and "minimum_cohort is 5" in line["became"]
    assert {record.levelname for record in caplog.records if "bytes in" in record.message} == {"WARNING"}


class Telling(Party):
    """A site whose data cannot be read; it keeps what it would log."""

    def __init__(self, number, error):
        super().__init__(number, dealt())
        self.site.holdings.data = OwnData(partial(self.broken, error))
        self.said = []

    def broken(self, error):
        raise error

    def heard(self, step):
        self.said.append(str(step))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            LookupError("patient 4711\nis missing"),
            r"\(internal\): LookupError in .*test_journal\.py, line \d+",
        ),
        (DataError("own.csv", "line 3\nhas no 'age'"), r"\(data\): own\.csv: line 3 has no 'age'"),
    ],
)
def test_of_an_error_that_is_not_one_of_ours_the_place_is_told_and_not_the_text(error, said):
    members = [Telling(number, error) for number in range(4)]
    with pytest.raises(UserError):
        run(experiment("fedavg"), members)
    assert re.fullmatch(rf"run [0-9a-f]{{8}} round 0 attempt 0: hello: refused {said}", members[0].said[0])


def test_what_a_server_writes_does_not_reach_the_terminal_of_who_reads_the_log():
    asked = {"name": "fedavg", "optimizer_options": {"\x1b[2J\nINFO": 1}}
    with pytest.raises(ConfigError) as refused:
        from_table({"scheme": asked})
    assert "\x1b" in str(refused.value)
    assert reason(refused.value).isprintable()


def test_what_is_seen_before_and_what_is_no_message_is_logged_too(tmp_path, caplog):
    members, messages = sites(tmp_path), []

    def listening(site, message, answer):
        messages.append(message)
        return answer(message)

    run(experiment("fedavg", rounds=1), {}, link=MemoryLink(members, listening), sites=4)
    caplog.clear()
    members[0](messages[0])
    assert lines(caplog)[0]["became"] == "refused (replayed): this message, or a later one, was answered"
    caplog.clear()
    changed = messages[0][:-1] + bytes([messages[0][-1] ^ 1])
    with pytest.raises(RemoteProtocolError):
        members[0](changed)
    (text,) = caplog.messages
    assert re.fullmatch(
        r"not answered: server broke the protocol in round 0: signature: not the sender's; \d+ bytes in, "
        r"\d+\.\d{3} s",
        text,
    )
