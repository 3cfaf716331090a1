"""The command line, many times, without importing torch each time.

`Command` starts this file as a server, which imports the program once and forks for every command. What it forks is
a process like any other: it has its own folder, environment and signals. What was started with `start` ends as Python
ends; `run` leaves out the second that Python takes to clean up.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ended:
    """A command that has ended; `code` is negative, as -9, where a signal ended it."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Running:
    """A command that was started."""

    server: "Command"
    pid: int
    out: Path
    err: Path

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self) -> Ended:
        code = self.server.ask(wait=self.pid)["code"]
        return Ended(code, self.out.read_text(), self.err.read_text() if self.err.is_file() else "")

    def wait_for(self, path: Path, lines: int = 1) -> None:
        """Wait until a file has so many lines."""
        deadline = time.monotonic() + 60
        while not path.exists() or path.read_bytes().count(b"\n") < lines:
            assert time.monotonic() < deadline, f"{path} did not come; {self.err.read_text()}"
            time.sleep(0.005)


class Command:
    """The server, seen from the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def start(
        self, *arguments: str, cwd: Path, stderr: Path | None = None, clean: bool = True, **environment: str
    ) -> Running:
        self.count += 1
        out, err = self.folder / f"{self.count}.out", stderr or self.folder / f"{self.count}.err"
        request = {"arguments": arguments, "cwd": str(cwd), "out": str(out), "err": str(err)}
        return Running(self, self.ask(**request, clean=clean, environment=environment)["pid"], out, err)

    def run(self, *arguments: str, cwd: Path, **environment: str) -> Ended:
        return self.start(*arguments, cwd=cwd, clean=False, **environment).end()

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


def serve() -> None:
    import sklearn.datasets  # noqa: F401, so that children find it imported

    from discreet import cli, config

    config.load("digits-fedavg")  # torch imports more when its first optimizer is made
    gc.freeze()  # or every child would copy all of this memory when it cleans up at its end
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = {"code": os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])}
        elif pid := os.fork():
            answer = {"pid": pid}
        else:
            become(request)
            try:
                cli.main()
            except SystemExit as end:
                if request["clean"]:
                    raise
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(int(end.code or 0))
        print(json.dumps(answer), flush=True)


def become(request: dict[str, Any]) -> None:
    """Turn this process into the one that was asked for."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOCTTY
    for stream, path in enumerate((os.devnull, request["out"], request["err"])):
        os.dup2(os.open(path, flags, 0o666), stream)
    os.chdir(request["cwd"])
    os.environ.update(request["environment"])
    sys.argv = ["discreet", *request["arguments"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


if __name__ == "__main__":
    serve()
