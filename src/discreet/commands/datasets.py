"""The command that shows data sets, and the one that fetches them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from discreet import flags
from discreet.terminal import complain, print_columns

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@app.callback()
def data(context: typer.Context, data_dir: flags.DataDir = None) -> None:
    """Show which data sets are found, and where."""
    if context.invoked_subcommand is not None:
        return
    from discreet.data.sources import available

    rows = [("data set", "train", "test", "where")]
    for found in available(data_dir):
        train, test = (f"{count:,}" if count is not None else "-" for count in (found.train, found.test))
        place = str(found.path or f"not found: discreet data fetch {found.name}")
        rows.append((found.name, train, test, place))
    print_columns(rows)
    print("Your own table or images: data.name = table | images, data.path = FILE. See docs/guide.md.")


@app.command()
def fetch(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The data set.")],
    data_dir: flags.DataDir = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Download a named data set from its public mirrors, checked and resumable."""
    before = (
        context.parent.params.get("data_dir") if context.parent else None
    )  # as in: data --data-dir DIR fetch
    from discreet.data.fetch import fetch as download

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    hidden = quiet or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), disable=hidden, transient=True) as bar:
        task = bar.add_task(name, total=None)

        def on_progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total or None, description=what)

        try:
            files = download(name, data_dir or before, on_progress=on_progress)
        except KeyboardInterrupt:
            complain("interrupted; the same command goes on with the download")
            raise SystemExit(130) from None
    for file in files:
        print(file)
