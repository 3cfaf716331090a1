import subprocess
import sys
import time

PARENT = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.DEVNULL)
sys.stdin.read()
"""

CHILD = """
import time
from discreet.federation.flower.orphans import end_when_orphaned

end_when_orphaned(lambda: print("last", flush=True), grace=0.2, pause=0.05)
print("watches", flush=True)
time.sleep(1.0)
print("goes on", flush=True)
time.sleep(600)
"""


def test_a_process_ends_soon_after_its_parent_and_not_before():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert [parent.stdout.readline() for _ in range(2)] == ["watches\n", "goes on\n"]
        start = time.monotonic()
        parent.stdin.close()
        assert parent.stdout.read() == "last\n"  # and then nobody has the pipe open any more
    assert parent.returncode == 0 and time.monotonic() - start < 60
