"""The commands of a federation between sites; `add_to` puts them on the command line."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from discreet import flags
from discreet.errors import ConfigError, MissingExtra
from discreet.terminal import complain, free_folder, print_columns, print_result, round_bar

ACT = "act"
"""The command that ``discreet site FOLDER`` means."""

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The site's own folder.")]


class SiteGroup(TyperGroup):
    """``discreet site FOLDER`` is short for ``discreet site act FOLDER``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that is meant."""
        known = self.get_command(ctx, args[0]) is not None or args[0].startswith("-")
        found: tuple[str | None, Any, list[str]] = super().resolve_command(
            ctx, args if known else [ACT, *args]
        )
        return found


site_app = typer.Typer(
    cls=SiteGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="A site: act for it, and look after its folder. discreet site FOLDER acts for the site in a folder.",
)


def add_to(app: typer.Typer) -> None:
    """Put the commands on the command line."""
    app.command()(federate)
    app.command()(certificates)
    app.command()(roster)
    app.command(
        add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
    )(node)
    app.add_typer(site_app, name="site")


def federate(
    experiment: flags.Experiment,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, help="How many sites.")],
    settings: flags.Settings = None,
    out: flags.RunFolder = None,
    resume: flags.Resume = False,
    rehearse: Annotated[
        bool,
        typer.Option("--rehearse", help="Draw all from the seed, as discreet run does: nothing is secret."),
    ] = False,
    data_dir: flags.DataDir = None,
    quiet: flags.Quiet = False,
    as_json: flags.ResultAsJson = False,
) -> None:
    """Run a whole federation on this machine: a server and N sites as processes, over Flower and TLS."""
    _need_flower()
    from discreet import config
    from discreet.federation import local
    from discreet.runs import CHECKPOINT

    chosen = local.between(config.load(experiment, settings or ()), nodes)
    folder = out or free_folder(experiment, resume)
    trial = local.Trial(
        experiment=chosen, sites=nodes, out=folder, resume=resume, rehearse=rehearse, data_dir=data_dir
    )
    again = flags.resuming(
        "federate",
        experiment,
        f"--nodes={nodes}",
        settings=settings,
        others=["--rehearse"] if rehearse else [],
        data_dir=data_dir,
        out=folder,
    )
    to_stderr = redirect_stdout(sys.stderr) if as_json else nullcontext()
    try:
        with to_stderr, round_bar(hidden=quiet or not sys.stderr.isatty()) as (_, on_round):
            result = local.federate(trial, on_round=on_round)
    except KeyboardInterrupt:
        complain(f"interrupted, finished rounds are kept; to go on: {again}")
        raise SystemExit(130) from None
    except local.FederationFailed as error:
        complain(str(error))
        if (folder / CHECKPOINT).exists():
            complain(f"finished rounds are kept; to go on: {again}")
        raise SystemExit(1) from None
    if as_json:
        print(json.dumps(result, indent=1))
    elif not quiet:
        print_result(result, folder)


def certificates(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where they go; nothing is overwritten.")],
    server: Annotated[
        str, typer.Option(metavar="HOST,...", help="Names and addresses by which sites reach the server.")
    ],
    sites: Annotated[str, typer.Option(metavar="NAME,...", help="The sites' names.")] = "",
    days: Annotated[int | None, typer.Option(help="For how long the server's certificate is valid.")] = None,
) -> None:
    """Make what a deployment needs: an authority, the server's certificate and identity, a node key for each site."""
    from discreet.federation.certificates import SERVER_DAYS, make_certificates
    from discreet.federation.files import NewFile, write_new
    from discreet.federation.identity import Identity

    identity = Identity.generate()
    written = make_certificates(
        folder, _names(server), _names(sites), days=SERVER_DAYS if days is None else days
    )
    written += write_new({folder / "identity.pem": NewFile(identity.to_pem())})
    for file in written:
        print(file)
    print(f"server: {identity.fingerprint}")


def roster(
    file: Annotated[Path, typer.Argument(metavar="ROSTER", help="The file to write.")],
    members: Annotated[
        list[Path], typer.Argument(metavar="MEMBER...", help="What discreet site init wrote at each site.")
    ],
    identity: Annotated[Path, typer.Option(metavar="FILE", help="The server's identity.")],
) -> None:
    """Make the list of who takes part, of which every party keeps a copy; compare its fingerprints before you do."""
    from discreet.federation.files import EVERYBODY, NewFile, read_text, write_new
    from discreet.federation.home import load_identity
    from discreet.federation.roster import Roster, server_toml

    texts = [server_toml(load_identity(identity).public), *(read_text(member) for member in members)]
    made = Roster.from_toml("\n".join(texts), file)
    write_new({file: NewFile(made.to_toml().encode(), EVERYBODY)})
    _print_roster(made)


def node(context: typer.Context) -> None:
    """Run Flower's SuperNode with shorter waits; the arguments are those of flower-supernode."""
    _need_flower()
    from discreet.federation.flower import node as flower

    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # Flower ends by itself; a second signal ends it at once
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.argv = ["flower-supernode", *context.args]
    flower.main()


@site_app.command(ACT)
def act(folder: Folder) -> None:
    """Act for a site: answer what its node hands over, until SIGTERM or Ctrl-C."""
    from discreet.federation import acting

    acting.act(folder)


@site_app.command()
def init(
    folder: Folder,
    number: Annotated[int, typer.Option(min=0, help="The site's number, from 0.")],
    name: Annotated[str, typer.Option(help="The site's name.")],
    source: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="Where its examples come from: package.module:function, a data set as table, or experiment.",
        ),
    ] = "experiment",
    options: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="What the source is asked for; repeatable."),
    ] = None,
    data_dir: flags.DataDir = None,
    limits: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What the site allows, instead of little.")
    ] = None,
) -> None:
    """Make a site's folder, with a new identity; edit site.toml and limits.toml in it."""
    from discreet.federation.files import NewFile, read_text, write_new
    from discreet.federation.home import Home
    from discreet.federation.limits import Limits
    from discreet.federation.roster import Member
    from discreet.federation.settings import SiteData, SiteSettings

    asked = _options(options)
    if ":" not in source:  # what the site's process starts from may be another folder
        paths: dict[str, Any] = {
            key: str(Path(asked[key]).absolute()) for key in ("path", "test_path") if key in asked
        }
        asked |= paths
    data = SiteData(source=source, options=asked, folder=str(data_dir.absolute()) if data_dir else None)
    allowed = Limits.from_toml(read_text(limits), limits) if limits else None
    home = Home.create(folder, SiteSettings(number=number, name=name, data=data), allowed)
    me = Member(number, name, home.identity.public)
    (member,) = write_new({folder / "member.toml": NewFile(me.to_toml().encode())})
    print(f"site {number}, {name}: {me.fingerprint}")
    print(f"send {member} to the server's operator; it holds nothing secret")


@site_app.command()
def pin(
    folder: Folder,
    file: Annotated[Path, typer.Argument(metavar="ROSTER", help="What discreet roster wrote.")],
) -> None:
    """Put a roster into a site's folder: from then on it answers that server alone, and knows the other sites."""
    from discreet.federation.files import read_text
    from discreet.federation.home import Home
    from discreet.federation.roster import Roster

    made, home = Roster.from_toml(read_text(file), file), Home.open(folder)
    before = home.roster
    home.pin(made, file)
    _print_roster(made)
    if before is not None and before != made:
        print(f"In place of the roster of {len(before)} sites that was here: {before.fingerprint}")
    print("It counts from the next start of the site's process.")


@site_app.command()
def export(
    folder: Folder,
    file: Annotated[Path, typer.Argument(metavar="FILE.safetensors", help="The file to write.")],
    run: Annotated[str | None, typer.Option(metavar="ID", help="Which run; the latest if not given.")] = None,
) -> None:
    """Write the site's model of a finished run, and a card that says what it is and what it does not protect."""
    from discreet.federation.home import Home

    sys.path.append("")  # the site's own modules may lie in the current folder
    for written in Home.open(folder).export(file, run):
        print(written)


@site_app.command()
def spent(
    folder: Folder,
    delta: Annotated[
        float | None, typer.Option(help="At which it is counted; that of limits.toml if not given.")
    ] = None,
) -> None:
    """Say what the site has spent in all its runs, and of which runs it has the model."""
    from discreet.federation.home import Home

    home = Home.open(folder)
    print(home.spent(delta).line(f"site {home.settings.number}, {home.settings.name}"))
    limits = home.limits
    print(
        "no limit"
        if limits.epsilon is None
        else f"limit: epsilon {limits.epsilon:g} at delta {limits.delta:g}, once the site's process starts"
    )
    print(f"models of the runs: {', '.join(home.runs()) or 'none'}")


def _print_roster(made: Any) -> None:
    rows = [("server", "", _fingerprint(made.server))]
    rows += [(str(site.number), site.name, site.fingerprint) for site in made.sites]
    print_columns(rows)
    print(f"roster: {made.fingerprint}")
    print("Compare these with the other parties by telephone, not by the mail that brought them.")


def _fingerprint(public: bytes) -> str:
    from discreet.federation.identity import fingerprint

    return fingerprint(public)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _options(settings: list[str] | None) -> dict[str, Any]:
    """Options of a data source; a value is read as TOML, else as a string."""
    import tomllib

    found: dict[str, Any] = {}
    for setting in settings or ():
        key, equals, value = setting.partition("=")
        if not (key and equals):
            raise ConfigError("--option", setting, "KEY=VALUE")
        try:
            found[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[key] = value
    return found


def _need_flower() -> None:
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise MissingExtra("discreet federate", "between processes", "flower")
