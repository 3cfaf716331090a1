"""The command line's entry point: which commands there are, and how they end. They parse, call and print.

Everything that they do can be done from Python as well.

Exit codes: 0 done; 1 a failure of the program; 2 a mistake in what was asked, told in one line on stderr;
130 interrupted (Ctrl-C, or SIGTERM), with a run folder that can be resumed.
"""

from __future__ import annotations

import os
import signal
import sys
from threading import Timer
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from discreet.commands import datasets, planning, simulations
from discreet.errors import UserError
from discreet.federation import commands as federation
from discreet.terminal import complain

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

app = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(datasets.app, name="data")
federation.add_to(app)
for command in (
    simulations.run,
    simulations.presets,
    simulations.report,
    simulations.audit,
    simulations.reproduce,
    planning.plan,
):
    app.command()(command)

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Every mistake in how a command is written; typer has no public name for it."""


def main() -> None:
    """The entry point of the ``discreet`` command."""
    sys.path.append("")  # package.module:factory may lie in the current folder
    for one in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(one) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(one, _interrupt)
    sys.unraisablehook = _not_lost
    try:
        code = app(standalone_mode=False)
    except UsageError as error:
        complain(_usage(error))
        code = 2
    except UserError as error:
        complain(str(error))
        code = 2
    except MemoryError as error:
        complain(f"not enough memory: {error}")
        code = 1
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    if code == 130:
        complain("interrupted")
    raise SystemExit(code or 0)


def _interrupt(signum: int, frame: object) -> NoReturn:
    """Unwind: workers finish the stack that they are at. A second signal does not wait for them."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, _end_at_once)
    raise KeyboardInterrupt


def _not_lost(lost: UnraisableHookArgs) -> None:
    """Interrupt once more, if that came where nothing can be raised: while an object was cleared away, say."""
    if lost.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(lost)
        return
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, _interrupt)
    again = Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))
    again.daemon = True
    again.start()


def _end_at_once(signum: int, frame: object) -> NoReturn:
    os.write(2, b"discreet: interrupted; what is finished is on disk\n")
    os._exit(130)


def _usage(error: Exception) -> str:
    """What is wrong with a command, and where to look."""
    context, said = getattr(error, "ctx", None), getattr(error, "format_message", error.__str__)()
    command = "discreet" if context is None else context.command_path
    where = f"{command} --help, or discreet presets" if command == "discreet run" else f"{command} --help"
    return f"{said.rstrip('.')}; see {where}"


@app.callback()
def discreet(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Private, robust federated learning for PyTorch. To begin: discreet run digits-fedavg."""
    if version:
        from discreet.results import versions

        print(" ".join(f"{name} {number}" for name, number in versions().items()))
    elif context.invoked_subcommand is None:
        print(context.get_help())
