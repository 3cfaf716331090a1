"""What lies in examples/ and benchmarks/, as modules."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest


@contextmanager
def loaded(*place: str) -> Iterator[ModuleType]:
    """The module of a file, whose place is counted from the folder of the project."""
    path = Path(__file__).parents[1].joinpath(*place)
    if not path.exists():
        pytest.skip(f"needs {'/'.join(place)}, which only the source tree has")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, path.stem, module)  # dataclasses look their module up
        spec.loader.exec_module(module)
        yield module
