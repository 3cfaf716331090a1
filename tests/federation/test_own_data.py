"""Four hospitals, each with a folder, a key and data of its own, and sums under masks: from the first key to the export."""

import re
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from discreet.cohort import Examples
from discreet.config import from_table
from discreet.data import sources
from discreet.data.dataset import Dataset
from discreet.errors import UnknownKey
from discreet.federation.budget import EVERYONE
from discreet.federation.home import Home
from discreet.federation.identity import Identity
from discreet.federation.limits import Limits
from discreet.federation.link import MemoryLink
from discreet.federation.party import Facts, prepared
from discreet.federation.roster import Member, Roster, server_toml
from discreet.federation.server import federate
from discreet.federation.settings import SiteData, SiteSettings
from discreet.federation.table import Deadlines
from discreet.privacy.accounting import spent

SERVER = Identity.from_secret(b"s" * 32)
SIZES = (20, 25, 31, 28)
EXPERIMENT = {
    "rounds": 3,
    "data": {"clients": 4},
    "model": {"name": "linear"},
    "scheme": {"name": "dp-signfed", "steps": 2},
    "privacy": {"noise_multiplier": 2.0, "delta": 1e-6, "dropout_tolerance": 0.25},
}


def patients(seed, count):
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(count, 4)).astype(np.float32)
    examples = Examples(torch.from_numpy(inputs), torch.from_numpy((inputs.sum(1) > 0).astype(np.int64)))
    return Dataset("hospital", "table", examples, examples, ("well", "ill"))


@pytest.fixture
def homes(tmp_path):
    """The folders of four sites, made one by one, which then pin the roster that their introductions make."""
    made = []
    for number, size in enumerate(SIZES):
        data = SiteData(source="test_own_data:patients", options={"seed": number, "count": size})
        settings = SiteSettings(number=number, name=f"hospital {number}", data=data)
        made.append(Home.create(tmp_path / f"site-{number}", settings))
    texts = [
        Member(home.settings.number, home.settings.name, home.identity.public).to_toml() for home in made
    ]
    roster = Roster.from_toml("\n".join([server_toml(SERVER.public), *texts]))
    return [home.pin(roster) for home in made]


def federated(homes, table=EXPERIMENT, **options):
    sites = {home.settings.number: home.site() for home in homes}
    link = MemoryLink({n: lambda message, n=n: homes[n].answer(sites[n], message) for n in range(len(homes))})
    asked = from_table(table)
    return federate(
        asked,
        link,
        identity=SERVER,
        roster=homes[0].roster,
        data=patients(9, 50),
        deadlines=Deadlines(5.0, 5.0, 5.0),
        **options,
    )


def test_of_a_sites_own_images_nothing_is_kept_outside_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DISCREET_CACHE", str(tmp_path / "cache"))
    for place in ("train/ill", "train/well", "test/ill", "test/well"):
        (tmp_path / "images" / place).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / place / "one.png")
    own = {"path": str(tmp_path / "images")}
    data = SiteData(source="images", options=own).load()
    if find_spec("kymatio") is not None:
        SiteData(source="images", options=own | {"features": "scattering"}).load()
        asked = from_table({"data": {"clients": 2, "features": "scattering"}, "model": {"name": "linear"}})
        federation = prepared(asked, Facts((2, 2)), data, None)
        assert federation.task.learner.network.count > 2 * 3 * 8 * 8 / 2
    assert not (tmp_path / "cache").exists()
    sources.load("images", **own)  # as in a simulation
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_site_has_no_say_in_what_is_kept():
    with pytest.raises(UnknownKey, match="keep"):
        SiteData(source="images", options={"path": "nowhere", "keep": True}).load()


def test_a_run_between_hospitals(homes, tmp_path):
    run = federated(homes)
    assert [line["participants"] for line in run.metrics] == [4, 4, 4]
    assert not any("roster" in note for note in run.result["notes"])
    for home in homes:
        # every site has written down each of its contributions, as if all took part
        assert [(entry.round, entry.count) for entry in home.spending.entries()] == [(1, 1), (2, 1), (3, 1)]
        assert {entry.released.sampling for entry in home.spending.entries()} == {EVERYONE}
        own = spent(home.spending.ledger(), 1e-6)
        assert own.epsilon == pytest.approx(run.result["privacy"]["epsilon"])
        # and has the model that the server has
        model, card = home.export(tmp_path / f"{home.settings.number}.safetensors")
        found = load_file(model)
        assert torch.equal(torch.cat([found["1.weight"].flatten(), found["1.bias"]]), run.vector)
        text = card.read_text()
        assert f"{SIZES[home.settings.number]} examples" in text
        assert re.search(rf"This run\*\*: epsilon {own.epsilon:.4g} at delta 1e-06 .*, 3 releases", text)
        assert "added up | under masks" in text


def test_a_hospital_whose_budget_is_spent_stops_and_the_others_go_on(homes):
    federated(homes)
    before = homes[1].spending.ledger()
    ((released, count),) = before.entries
    assert count == 3
    # room for two rounds more, in whichever run
    limits = Limits(epsilon=spent(before.add(released, 2), 1e-6).epsilon * 1.0001, delta=1e-6)
    (homes[1].folder / "limits.toml").write_text(limits.to_toml())
    homes[1] = Home.open(homes[1].folder)
    run = federated(homes)
    assert [line["participants"] for line in run.metrics] == [4, 4, 3]
    assert [one["detail"] for one in run.metrics[-1]["failures"]] == ["budget (Work)"]
    assert [home.spending.ledger().releases for home in homes] == [6, 5, 6, 6]


def test_a_hospital_that_has_lost_its_state_says_so_and_is_welcomed_again(homes):
    def lose(metrics, rounds):
        if metrics["round"] == 1:
            homes[1].forget()

    run = federated(homes, {**EXPERIMENT, "rounds": 4}, on_round=lose)
    # it is welcomed along with round 2, when the keys of round 3 are shared already
    assert [line["participants"] for line in run.metrics] == [4, 3, 3, 4]
    assert [one["cause"] for one in run.metrics[1]["failures"]] == ["refused"]
    assert "state-missing" in run.metrics[1]["failures"][0]["detail"]
    assert [entry.round for entry in homes[1].spending.entries()] == [1, 4]
