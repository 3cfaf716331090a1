"""The project in examples/three-sites, as its README says, by its script."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs discreet[flower]")

from discreet.federation.flower.deployment import free_ports
from discreet.federation.home import Home

PROJECT = Path(__file__).parents[2] / "examples" / "three-sites"
PROGRAMS = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("discreet", path=PROGRAMS), reason="the command is not installed")
def test_three_hospitals_train_together(tmp_path):
    ports = free_ports(1)
    environment = {**os.environ, "PATH": PROGRAMS, "HOME": str(tmp_path)}
    ended = subprocess.run(
        ["sh", str(PROJECT / "run.sh"), str(tmp_path / "work"), str(ports[0])],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads((tmp_path / "work" / "run" / "result.json").read_text())
    assert (result["scheme"], result["secure"], result["participants"]) == ("cgd", "additive", 3)
    assert result["notes"] == []  # a roster: nobody is trusted for keys
    assert result["worst"]["accuracy"] > 0.8  # the more frequent diagnosis alone gives 0.63
    for site in ("north", "south", "west"):
        home = Home.open(tmp_path / "work" / site / "site")
        assert home.roster is not None and len(home.roster) == 3
        assert "acts for site" in (tmp_path / "work" / site / "site.log").read_text()
