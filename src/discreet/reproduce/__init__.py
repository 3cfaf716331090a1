"""A paper's table beside ours: ``discreet reproduce``.

A table is a TOML file (`discreet.reproduce.tables`); those of the papers lie in ``experiments``. Each of its cells is
a run with a folder of its own, so that a table can be interrupted and gone on with, like a run.
"""

from __future__ import annotations

from discreet.reproduce.cells import Cell, cells
from discreet.reproduce.record import markdown
from discreet.reproduce.running import Reproduction, Watch, command, reproduce
from discreet.reproduce.tables import Column, Row, Table, TableError, TableFile, find, read, tables

__all__ = [
    "Cell",
    "Column",
    "Reproduction",
    "Row",
    "Table",
    "TableError",
    "TableFile",
    "Watch",
    "cells",
    "command",
    "find",
    "markdown",
    "read",
    "reproduce",
    "tables",
]
