import dataclasses
import math
import os
import tomllib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from discreet import checked, config, preparation
from discreet.adversaries import Adversary
from discreet.config import (
    Data,
    Dropouts,
    Engine,
    Experiment,
    Model,
    Privacy,
    from_table,
    load,
    parse,
    presets,
    to_table,
    to_toml,
)
from discreet.data.partitions import PARTITIONS
from discreet.engine import CACHE_BYTES, MOST_LANES, resolve
from discreet.errors import ConfigError, UnknownKey
from discreet.network import network_of
from discreet.schemes import SCHEMES, Centralized, DPSignFed, FedAvg, FedSGD, SignFed


def refused(table):
    """The one line that a table is refused with."""
    with pytest.raises(ConfigError) as caught:
        from_table(table)
    assert "\n" not in str(caught.value)
    return caught.value


# ---- unknown keys


@pytest.mark.parametrize(
    ("table", "key", "right"),
    [
        ({"round": 3}, "round", "rounds"),
        ({"sead": 3}, "sead", "seed"),
        ({"Rounds": 3}, "Rounds", "rounds"),
        ({"data": {"client": 3}}, "data.client", "data.clients"),
        ({"data": {"labels_per_clients": 3}}, "data.labels_per_clients", "data.labels_per_client"),
        ({"engine": {"worker": 2}}, "engine.worker", "engine.workers"),
        ({"scheme": {"learning_rat": 0.1}}, "scheme.learning_rat", "scheme.learning_rate"),
        ({"scheme": {"name": "fedsgd", "batchsize": 1}}, "scheme.batchsize", "scheme.batch_size"),
        # what the key is called elsewhere
        ({"scheme": {"name": "signfed", "gamma": 0.1}}, "scheme.gamma", "scheme.server_learning_rate"),
        ({"scheme": {"gamma": 0.1}}, "scheme.gamma", "scheme.server_learning_rate"),
        ({"scheme": {"lr": 0.1}}, "scheme.lr", "scheme.learning_rate"),
        ({"scheme": {"T_gd": 5}}, "scheme.T_gd", "scheme.steps"),
        ({"scheme": {"local_epochs": 5}}, "scheme.local_epochs", "scheme.epochs"),
        ({"data": {"n_clients": 5}}, "data.n_clients", "data.clients"),
        ({"num_rounds": 5}, "num_rounds", "rounds"),
        ({"dropouts": {"masks": 0.1}}, "dropouts.masks", "dropouts.mask"),
        # a key of a section, outside of it
        ({"clients": 2}, "clients", "data.clients or adversary.clients"),
        ({"epsilon": 2.0}, "epsilon", "privacy.epsilon"),
        ({"name": "mlp"}, "name", "data.name or model.name"),
    ],
)
def test_an_unknown_key_is_told_with_the_nearest_right_one(table, key, right):
    error = refused(table)
    assert isinstance(error, UnknownKey) and error.key == key
    assert str(error) == f"unknown key {key!r}: did you mean {right}?"


@pytest.mark.parametrize(
    ("table", "listed"),
    [
        ({"zzz": 1}, "the top level has data, model, scheme, rounds"),
        ({"data": {"zzz": 1}}, "data has name, task, path"),
        ({"dropouts": {"zzz": 1}}, "dropouts has advertise, share, mask, unmask"),
        ({"scheme": {"name": "fedsgd", "gamma": 1}}, "scheme has batch_size, learning_rate"),
    ],
)
def test_where_nothing_is_near_all_keys_are_listed(table, listed):
    assert listed in str(refused(table))


def test_a_synonym_leads_only_to_keys_that_are_there():
    fields = {f.name for kind in (Data, Experiment, *SCHEMES.values()) for f in dataclasses.fields(kind)}
    assert set(checked.SYNONYMS.values()) <= fields
    assert not set(checked.SYNONYMS) & fields


@pytest.mark.parametrize(
    ("table", "key", "near"),
    [
        ({"scheme": {"name": "fedavgg"}}, "scheme.name", "fedavg"),
        ({"scheme": {"name": "sign-fed"}}, "scheme.name", "signfed"),
        ({"data": {"name": "mnst"}}, "data.name", "mnist"),
        ({"data": {"partition": "dirichlett"}}, "data.partition", "dirichlet"),
        ({"data": {"augment": "flipp"}}, "data.augment", "flip"),
        ({"model": {"loss": "cross_entropy"}}, "model.loss", "cross-entropy"),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest_right_one(table, key, near):
    error = refused(table)
    assert error.key == key and f"did you mean {near!r}?" in str(error)


# ---- wrong types and values


@pytest.mark.parametrize(
    ("table", "key", "expected"),
    [
        ({"rounds": "many"}, "rounds", "integer"),
        ({"rounds": 2.5}, "rounds", "integer"),
        ({"rounds": True}, "rounds", "integer"),
        ({"rounds": 0}, "rounds", "greater than or equal to 1"),
        ({"seed": 2**63}, "seed", "less than 9223372036854775808"),
        ({"fraction": 0}, "fraction", "greater than 0"),
        ({"fraction": 1.5}, "fraction", "less than or equal to 1"),
        ({"fraction": math.nan}, "fraction", "than"),
        ({"fraction": "0.1"}, "fraction", "number"),
        ({"sampling": "random"}, "sampling", "'fixed' or 'poisson'"),
        ({"secure": True}, "secure", "'none'"),
        ({"data": {"clients": "10"}}, "data.clients", "integer"),
        ({"data": {"clients": 0}}, "data.clients", "greater than or equal to 1"),
        ({"data": {"standardise": 1}}, "data.standardise", "boolean"),
        ({"data": {"path": 3}}, "data.path", "string"),
        ({"data": {"alpha": math.inf}}, "data.alpha", "finite"),
        ({"data": {"partition": "column"}}, "data.client_column", "the column"),
        ({"data": "digits"}, "data", "a section [data]"),
        ({"data": [1]}, "data", "a section [data]"),
        ({"scheme": "fedavg"}, "scheme", "a section [scheme]"),
        ({"scheme": {"name": 3}}, "scheme.name", "one of"),
        ({"scheme": {"name": ["fedavg"]}}, "scheme.name", "one of"),
        ({"scheme": {"learning_rate": "0.1"}}, "scheme.learning_rate", "number"),
        ({"scheme": {"learning_rate": 0}}, "scheme.learning_rate", "greater than 0"),
        ({"scheme": {"learning_rate": math.inf}}, "scheme.learning_rate", "finite"),
        ({"scheme": {"steps": True}}, "scheme.steps", "integer"),
        ({"scheme": {"steps": 1, "epochs": 1}}, "scheme.epochs", "not both"),
        ({"scheme": {"momentum": 1}}, "scheme.momentum", "less than 1"),
        ({"scheme": {"optimizer": "lbfgs"}}, "scheme.optimizer", "sgd, adam"),
        ({"scheme": {"optimizer_options": 3}}, "scheme.optimizer_options", "dict"),
        ({"engine": {"lanes": 0}}, "engine.lanes", "'auto' or a number of at least 1"),
        ({"engine": {"lanes": "many"}}, "engine.lanes", "'auto' or"),
        ({"engine": {"lanes": True}}, "engine.lanes", "'auto' or"),
        ({"engine": {"workers": -1}}, "engine.workers", "'auto' or a number of at least 1"),
        ({"engine": {"device": "tpu"}}, "engine.device", "'cpu' or 'cuda'"),
        ({"engine": {"gradients": "fast"}}, "engine.gradients", "'layers', 'vmap' or 'autograd'"),
        ({"patience": 3}, "patience", "data.holdout"),
        ({"dropouts": 0.1}, "dropouts", "a section [dropouts]"),
        ({"dropouts": {"advertise": -0.1}}, "dropouts.advertise", "greater than or equal to 0"),
        ({"dropouts": {"unmask": 1.0}}, "dropouts.unmask", "less than 1"),
        ({"dropouts": {"mask": math.nan}}, "dropouts.mask", "than"),
        ({"dropouts": {"share": "0.1"}}, "dropouts.share", "number"),
    ],
)
def test_a_wrong_value_is_told_by_its_key_with_what_would_be_right(table, key, expected):
    error = refused(table)
    assert error.key == key and str(error).startswith(f"{key} = ")
    assert expected in error.expected


def test_whole_numbers_may_stand_for_real_ones():
    whole = from_table({"fraction": 1, "scheme": {"learning_rate": 1}})
    assert whole.fraction == 1.0 and whole.scheme.learning_rate == 1.0


def test_an_experiment_takes_only_schemes():
    with pytest.raises(ConfigError, match="an instance of a scheme: centralized, local"):
        Experiment(scheme=Data())


# ---- --set


def setting(*settings, source="digits-fedavg"):
    return load(source, settings)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("scheme.learning_rate=0.25", lambda e: e.scheme.learning_rate == 0.25),
        ("scheme.learning_rate=1e-3", lambda e: e.scheme.learning_rate == 0.001),
        ("rounds = 7", lambda e: e.rounds == 7),
        (" rounds=7 ", lambda e: e.rounds == 7),
        ("seed=-5", lambda e: e.seed == -5),
        ("data.partition=dirichlet", lambda e: e.data.partition == "dirichlet"),
        ('data.partition="dirichlet"', lambda e: e.data.partition == "dirichlet"),
        ("data.path=/some/where=odd/x.csv", lambda e: e.data.path == "/some/where=odd/x.csv"),
        ("data.path=a b # c", lambda e: e.data.path == "a b # c"),
        ("data.path='3'", lambda e: e.data.path == "3"),
        ("data.standardise=false", lambda e: e.data.standardise is False),
        ("model.widths=[30, 20]", lambda e: e.model.options == {"widths": [30, 20]}),
        ("model.name=own.module:make", lambda e: e.model.name == "own.module:make"),
        # another model has other options
        ("model.name=linear", lambda e: (e.model.name, e.model.options) == ("linear", {})),
        ("engine.workers=auto", lambda e: e.engine.workers == "auto"),
        ("engine.workers=2", lambda e: e.engine.workers == 2),
        (
            "scheme.optimizer_options.nesterov=true",
            lambda e: e.scheme.optimizer_options == {"nesterov": True},
        ),
        (
            "scheme.optimizer_options={dampening = 0.5}",
            lambda e: e.scheme.optimizer_options == {"dampening": 0.5},
        ),
    ],
)
def test_a_setting_is_toml_or_else_a_string(text, read):
    more = ("scheme.momentum=0.9",) if "nesterov" in text else ()
    assert read(setting(text, *more))


def test_a_later_setting_wins():
    assert setting("rounds=3", "rounds=4").rounds == 4


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rounds", "key.path=value"),
        ("=3", "key.path=value"),
        ("", "key.path=value"),
        ("rounds.more=3", "rounds to be a section"),
        ("scheme=fedavg", "a section"),
        ("rounds=many", "rounds = 'many': expected a valid integer"),
        ("round=3", "did you mean rounds?"),
        ("data.=3", "unknown key 'data.'"),
        ("rounds=1\nseed=2", "rounds = "),
        ("scheme.name=fedavgg", "did you mean 'fedavg'?"),
        ("scheme.name=[1]", "scheme.name = [1]: expected one of"),
        ("scheme.name=3", "scheme.name = 3: expected one of"),
    ],
)
def test_a_mistaken_setting_is_told(text, told):
    with pytest.raises(ConfigError) as caught:
        setting(text)
    assert told in str(caught.value)


def test_another_scheme_keeps_the_fields_that_it_knows():
    assert setting().scheme == FedAvg(steps=10, learning_rate=0.1)
    assert setting("scheme.name=signfed").scheme == SignFed(steps=10, learning_rate=0.1)
    assert setting("scheme.name=fedsgd").scheme == FedSGD(learning_rate=0.1)
    assert setting("scheme.name=fedavg").scheme == setting().scheme
    chosen = setting("scheme.name=centralized", source="digits-signfed")
    assert chosen.scheme == Centralized(steps=10, learning_rate=0.1)
    both = setting("scheme.name=fedsgd", "scheme.batch_size=7", "scheme.learning_rate=2.0")
    assert both.scheme == FedSGD(batch_size=7, learning_rate=2.0)


def test_another_scheme_for_one_that_was_not_named(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text("[scheme]\nsteps = 3\nlearning_rate = 0.3\n")
    assert load(str(file)).scheme == FedAvg(steps=3, learning_rate=0.3)
    assert load(str(file), ["scheme.name=fedsgd"]).scheme == FedSGD(learning_rate=0.3)


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_asked_for_is_never_dropped_in_silence(order):
    with pytest.raises(UnknownKey, match=r"scheme\.momentum"):
        setting(*["scheme.momentum=0.5", "scheme.name=fedsgd"][::order])


@pytest.mark.parametrize(("there", "asked"), [("steps", "epochs"), ("epochs", "steps")])
def test_steps_and_epochs_take_the_place_of_each_other(tmp_path, there, asked):
    file = tmp_path / "own.toml"
    file.write_text(f"[scheme]\n{there} = 3\nlearning_rate = 0.3\n")
    for text in (f"scheme.{asked}=2", f" scheme.{asked} = 2"):
        chosen = load(str(file), [text, "scheme.momentum=0.5"])
        assert chosen.scheme == FedAvg(**{asked: 2}, learning_rate=0.3, momentum=0.5)
    signfed = load(str(file), [f"scheme.{asked}=2", "scheme.name=signfed"])
    assert signfed.scheme == SignFed(**{asked: 2}, learning_rate=0.3)
    assert load(str(file), [f"scheme.{there}=2"]).scheme == FedAvg(**{there: 2}, learning_rate=0.3)


@pytest.mark.parametrize("order", [1, -1])
def test_steps_and_epochs_that_are_both_asked_for_are_refused(tmp_path, order):
    file = tmp_path / "own.toml"
    for written in ("", "[scheme]\nsteps = 3\n", "[scheme]\nepochs = 3\n"):
        file.write_text(written)
        with pytest.raises(ConfigError, match=r"^scheme\.epochs = 2: expected either steps or epochs"):
            load(str(file), ["scheme.steps=1", "scheme.epochs=2"][::order])
    file.write_text("[scheme]\nsteps = 3\nepochs = 2\n")  # a mistake of the file's own stays one
    with pytest.raises(ConfigError, match="either steps or epochs"):
        load(str(file), ["rounds=3"])


@pytest.mark.parametrize("scheme", ["scheme = 3", 'scheme = "fedavg"', "[[scheme]]"])
def test_epochs_for_a_scheme_that_is_no_section(tmp_path, scheme):
    file = tmp_path / "own.toml"
    file.write_text(scheme)
    with pytest.raises(ConfigError, match="scheme to be a section"):
        load(str(file), ["scheme.epochs=1"])


# ---- files and presets


def test_there_are_presets():
    assert {"digits-fedavg", "digits-signfed", "mnist-fedavg", "mnist-signfed"} <= presets().keys()


@pytest.mark.parametrize("name", presets())
def test_a_preset_is_named_for_what_it_does_and_complete(name):
    text = (config.resources.files("discreet") / "presets" / f"{name}.toml").read_text("utf-8")
    summary = presets()[name]
    assert text.startswith(f"# {summary}\n") and summary
    table, whole = tomllib.loads(text), load(name)
    assert name == f"{whole.data.name}-{whole.scheme_name}"
    # what makes an experiment what it is stands in the file, and is no default that could change under it
    assert {"rounds", "fraction", "seed"} <= table.keys()
    assert {"name", "clients"} <= table["data"].keys()
    assert "name" in table["model"] and {"name", "learning_rate"} <= table["scheme"].keys()
    assert from_table(tomllib.loads(to_toml(whole))) == whole


def test_a_file_is_read(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text(
        'rounds = 3\n[data]\nclients = 4\n[model]\nname = "mlp"\nwidths = [7]\n[scheme]\nname = "signfed"\n'
    )
    whole = load(str(file), ["seed=9"])
    assert whole == Experiment(
        rounds=3,
        seed=9,
        data=Data(clients=4),
        model=Model(name="mlp", options={"widths": [7]}),
        scheme=SignFed(),
    )


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("nosuch.toml", "a TOML file that exists"),
        ("digits-fedavgg", "did you mean 'digits-fedavg'?"),
        ("nosuch", f"a TOML file, or a preset: {', '.join(presets())}"),
    ],
)
def test_a_source_that_is_not_there_is_told(source, told):
    with pytest.raises(ConfigError) as caught:
        load(source)
    assert told in str(caught.value) and source in str(caught.value)


@pytest.mark.parametrize("content", [b"rounds = = 3", b"rounds 3", b"\xff\xfe\x00", b"[data\n"])
def test_a_file_that_is_no_toml_is_told_by_its_name(tmp_path, content):
    file = tmp_path / "broken.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(str(file))
    assert "broken.toml" in str(caught.value) and "TOML" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_parse_names_its_source():
    assert parse("rounds = 3", "here") == {"rounds": 3}
    with pytest.raises(ConfigError, match="here"):
        parse("rounds", "here")


# ---- there and back

STEPS = st.one_of(
    st.fixed_dictionaries({"steps": st.integers(1, 99)}), st.fixed_dictionaries({"epochs": st.integers(1, 9)})
)
RATES = st.floats(1e-6, 10)


@st.composite
def experiments(draw):
    name = draw(st.sampled_from(list(SCHEMES)))
    fields = {field.name for field in dataclasses.fields(SCHEMES[name])}
    values = draw(STEPS) | {"learning_rate": draw(RATES), "server_learning_rate": draw(RATES)}
    values |= {"batch_size": draw(st.integers(0, 99)), "weight_decay": draw(st.floats(0, 1))}
    if draw(st.booleans()):
        values |= {"optimizer": "adam", "optimizer_options": {"betas": [0.5, draw(st.floats(0.1, 0.9))]}}
    if SCHEMES[name].private:
        multiplier = draw(st.none() | RATES)
        privacy = Privacy(
            noise_multiplier=multiplier,
            epsilon=draw(RATES if multiplier is None else st.none() | RATES),
            delta=draw(st.floats(1e-12, 0.5)),
            accountant=draw(st.sampled_from(["rdp", "pld", "best"])),
            dropout_tolerance=draw(st.floats(0, 0.9)),
            assumed_dishonest=draw(st.integers(0, 9)),
        )
    else:
        privacy = None
    return Experiment(
        privacy=privacy,
        secure=draw(
            st.sampled_from(
                ["auto", "none", "masked"] if privacy and SCHEMES[name].modular else ["auto", "none"]
            )
        ),
        scheme=SCHEMES[name](**{key: value for key, value in values.items() if key in fields}),
        data=Data(
            name="mnist",
            path=draw(st.none() | st.text(max_size=5)),
            client_column="who",
            partition=draw(st.sampled_from(list(PARTITIONS))),
            alpha=draw(RATES),
            standardise=draw(st.booleans()),
        ),
        model=Model(
            options=draw(st.dictionaries(st.sampled_from(["widths", "odd"]), st.lists(st.integers(1, 9))))
        ),
        engine=Engine(
            lanes=draw(st.just("auto") | st.integers(1, 64)),
            workers=draw(st.just("auto") | st.integers(1, 64)),
        ),
        fraction=draw(st.floats(1e-9, 1)),
        sampling=draw(st.sampled_from(["fixed", "poisson"])),
        dropouts=Dropouts(
            **{step: draw(st.floats(0, 0.99)) for step in ("advertise", "share", "mask", "unmask")}
            if draw(st.booleans())
            else {}
        ),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
    )


@given(experiments())
def test_toml_gives_the_same_experiment_again(whole):
    assert from_table(to_table(whole)) == whole
    assert from_table(tomllib.loads(to_toml(whole))) == whole


def test_a_table_is_complete_and_its_keys_are_those_that_can_be_set():
    table = to_table(Experiment(data=Data(path="x"), model=Model(options={"widths": [3]})))
    assert table["scheme"]["name"] == "fedavg" and table["model"] == {
        "name": "mlp",
        "loss": "auto",
        "widths": [3],
    }
    every_key = {field.name for field in dataclasses.fields(Experiment)}
    # fedavg has no privacy, nobody drops out, and nobody is malicious
    assert every_key - {"privacy", "dropouts", "adversary"} == table.keys()
    noisy = Experiment(
        scheme=DPSignFed(),
        privacy=Privacy(noise_multiplier=1.0),
        dropouts=Dropouts(mask=0.1),
        adversary=Adversary(fraction=0.1),
    )
    assert every_key == to_table(noisy).keys()
    assert table["data"]["path"] == "x" and "target" not in table["data"]
    sections = [key for key, value in table.items() if isinstance(value, dict)]
    assert list(table)[-len(sections) :] == sections  # TOML's plain keys have to come first


def test_an_option_that_toml_cannot_hold_is_refused():
    with pytest.raises(ConfigError, match="TOML can hold"):
        to_toml(Experiment(model=Model(options={"activation": nn.ReLU()})))


# ---- what is left to be resolved


def settled(experiment, module, dimensions=1, clients=1000, stackable=True):
    return resolve(experiment, network_of(module), dimensions, clients, lambda: stackable).engine


MLP = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def test_auto_is_resolved_from_the_model_and_the_cohort():
    engine = settled(Experiment(fraction=0.1), MLP)
    assert engine.gradients == "layers" and engine.lanes == 50  # half of 100, so that there are two stacks
    assert engine.workers == (os.cpu_count() or 1)
    assert settled(Experiment(), MLP).lanes == MOST_LANES
    assert settled(Experiment(fraction=0.001), MLP).lanes == 1
    big = nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    assert settled(Experiment(), big).lanes == CACHE_BYTES // (4 * 159_010)
    huge = nn.Linear(2000, 1000)
    assert settled(Experiment(), nn.Sequential(huge)).lanes == 1


def test_the_path_follows_the_model():
    small, large = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Sequential(nn.Linear(600, 1000), nn.Tanh())
    engine = settled(Experiment(), small)
    assert (engine.gradients, engine.lanes) == ("vmap", MOST_LANES)
    for engine in (settled(Experiment(), large), settled(Experiment(), small, stackable=False)):
        assert (engine.gradients, engine.lanes) == ("autograd", 1)
    assert settled(Experiment(), MLP, stackable=False).gradients == "layers"


def test_what_was_chosen_is_kept():
    chosen = Engine(lanes=7, workers=3, gradients="vmap", threads=2)
    assert settled(Experiment(engine=chosen), MLP) == chosen


def test_a_path_that_cannot_do_the_model_is_refused():
    with pytest.raises(ConfigError, match=r"engine\.gradients = 'layers'.*vmap or autograd"):
        settled(Experiment(engine=Engine(gradients="layers")), nn.Sequential(nn.Linear(6, 5), nn.Tanh()))
    with pytest.raises(ConfigError, match=r"engine\.gradients = 'vmap'.*autograd"):
        settled(Experiment(engine=Engine(gradients="vmap")), MLP, stackable=False)


def test_what_is_resolved_stands_in_the_experiment_of_a_run(blobs):
    whole = preparation.prepare(Experiment(data=Data(clients=5)), blobs).experiment
    table = to_table(whole)
    assert "auto" not in (table["engine"][key] for key in ("lanes", "workers", "gradients"))
    assert from_table(table) == whole
    # the lanes decide the last bits of a run: they do not depend on the machine
    assert table["engine"]["lanes"] == 3
    assert torch.get_num_threads() == 1
