"""Kills a run at every moment at which its folder changes, resumes it, and compares; run as a program.

What a kill is here: SIGKILL, in a process forked for it, just before a file is opened, renamed or removed, halfway
through a write, and just after one. Nothing buffered gets out, no `finally` runs, as in life.
"""

import dataclasses
import gc
import io
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import torch

from discreet.config import Data, Engine, Experiment, Model, Privacy
from discreet.schemes import SCHEMES
from discreet.simulation import simulate
from federations import TIMES, dataset

ROUNDS = 2
BLOBS = dataset()


def experiment(name, **changes):
    if SCHEMES[name].private:
        changes |= {"privacy": Privacy(noise_multiplier=2.0), "secure": "none"}
    return Experiment(
        data=Data(clients=4, **({} if name == "local" else {"holdout": 0.2})),
        model=Model(name="mlp", options={"widths": [3]}),
        scheme=SCHEMES[name](steps=2, learning_rate=0.1),
        fraction=0.5,
        sampling="poisson",
        rounds=ROUNDS,
        engine=Engine(workers=1),
        **changes,
    )


class Killer:
    """Counts the moments at which the folder changes, and ends the process at one of them."""

    def __init__(self, folder, moment):
        self.folder, self.moment, self.count = str(folder), moment, 0

    def tick(self):
        self.count += 1
        if self.count == self.moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self):
        sys.addaudithook(self.event)
        really_open = io.open

        def opened(file, mode="r", *arguments, **keywords):
            found = really_open(file, mode, *arguments, **keywords)
            ours = str(file).startswith(self.folder) and mode[0] in "wa"
            return Torn(found, self) if ours else found

        io.open = opened

    def event(self, name, arguments):
        changes = name in ("os.rename", "os.remove", "os.mkdir") or (
            name == "open" and arguments[2] & os.O_CREAT
        )
        if changes and str(arguments[0]).startswith(self.folder):
            self.tick()


class Wrapped:
    """A file, but for what a subclass does otherwise."""

    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()


class Torn(Wrapped):
    """A file whose writes are two halves, each on the disk at once."""

    def __init__(self, file, killer):
        super().__init__(file)
        self.killer = killer

    def write(self, content):
        half = len(content) // 2
        for piece in (content[:half], content[half:]):
            self.file.write(piece)
            self.file.flush()
            self.killer.tick()


def forked(chosen, folder, moment, resume):
    """Run in a process of its own, to be killed at `moment`; how many moments it had, or None if it was killed."""
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        killer = Killer(folder, moment)
        killer.watch()
        simulate(chosen, data=BLOBS, out=folder, resume=resume)
        os.write(writable, str(killer.count).encode())
        os._exit(0)
    os.close(writable)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with open(readable) as pipe:
        said = pipe.read()
    assert code == (0 if said else -signal.SIGKILL), (code, said)
    return int(said) if said else None


def contents(folder):
    """All files of a run folder, hidden ones too, without times and memory."""
    found = {file.name: file.read_bytes() for file in folder.iterdir()}
    found["metrics.jsonl"] = [
        {key: value for key, value in json.loads(line).items() if key not in TIMES}
        for line in found["metrics.jsonl"].splitlines()
    ]
    result = json.loads(found["result.json"])
    del result["seconds_per_round"], result["peak_memory_bytes"]
    return found | {"result.json": result}


def killed_everywhere(name, scratch, thorough):
    """Kill a run at every moment; if thorough, kill some resumptions at every moment too."""
    chosen = experiment(name)
    whole = scratch / "whole"
    moments = forked(chosen, whole, 0, resume=False)
    wanted, tried = contents(whole), 0
    for moment in range(1, moments + 1):
        folder = scratch / f"{moment}"
        assert forked(chosen, folder, moment, resume=False) is None
        if thorough and moment == moments // 2:
            left = scratch / "left"
            shutil.copytree(folder, left)
            more = forked(chosen, left, 0, resume=True)
            for second in range(1, more + 1):
                again = scratch / f"{moment}-{second}"
                shutil.copytree(folder, again)
                assert forked(chosen, again, second, resume=True) is None
                check(chosen, again, wanted)
                tried += 1
            shutil.rmtree(left)
        check(chosen, folder, wanted)
        tried += 1
    if not thorough:
        return tried
    # a finished run that goes on for one more round
    longer = dataclasses.replace(chosen, rounds=ROUNDS + 1)
    straight = scratch / "straight"
    simulate(longer, data=BLOBS, out=straight)
    wanted = contents(straight)
    left = scratch / "left"
    shutil.copytree(whole, left)
    for moment in range(1, forked(longer, left, 0, resume=True) + 1):
        folder = scratch / f"longer-{moment}"
        shutil.copytree(whole, folder)
        assert forked(longer, folder, moment, resume=True) is None
        check(longer, folder, wanted)
        tried += 1
    return tried


def check(chosen, folder, wanted):
    simulate(chosen, data=BLOBS, out=folder, resume=True)
    found = contents(folder)
    assert found.keys() == wanted.keys(), (folder.name, found.keys() ^ wanted.keys())
    for name, value in wanted.items():
        assert found[name] == value, (folder.name, name)
    shutil.rmtree(folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.freeze()
    memory = "/dev/shm"  # no disk to wait for, where there is such a thing
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as scratch:
        for name, thorough in (("fedavg", True), ("local", False), ("dp-signfed", False)):
            (Path(scratch) / name).mkdir()
            print(name, killed_everywhere(name, Path(scratch) / name, thorough))
