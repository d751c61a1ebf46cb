"""The commands of docs/tutorial.md, in a shell, as its reader types them."""

import os
import re
import socket
import subprocess
import sys

from tests.process.workspace import ROOT

DOCUMENT = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(sh|text)\n(.*?)```", DOCUMENT, re.DOTALL)


def without_numbers(text):
    return {re.sub(r" *-?\d[\d.,e-]* *", "#", line) for line in text.splitlines()}


def test_a_reader_comes_to_a_daemon_on_a_file_of_their_own(here):
    for name, command in (("streammoe", f'"{sys.executable}" -m streammoe'), ("python", f'"{sys.executable}"')):
        program = here / name
        program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        program.chmod(0o755)
    (here / "mine.csv").write_text("a;level\n" + "".join(f"{n % 7};{n % 7 * 2 + n % 3}\n" for n in range(400)))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = os.environ | {"PATH": f"{here.folder}:{os.environ['PATH']}"}
    environment |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'connectors'}"}
    environment |= {"STREAMMOE_SERVE__PORT": str(port), "STREAMMOE_METRICS__PORT": "0"}
    ends = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"  # also after a command that fails
    script = "\n".join([ends, *(text for kind, text in BLOCKS if kind == "sh")])
    assert script.count("TARGET") == 1
    script = script.replace("TARGET", "level").replace("localhost:9465", f"localhost:{port}")
    # What its table advises for such a file.
    script = script.replace('mine.csv --target "$target"', 'mine.csv --target "$target" --set source.delimiter=";"')
    script = script.replace("follow = true", 'follow = true\ndelimiter = ";"')

    done = subprocess.run(
        ["bash", "-em"],
        check=False,
        input=script,
        cwd=here.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    printed = without_numbers(done.stdout)
    assert list((here / "state-mine").glob("*.safetensors"))
    assert not {line for kind, text in BLOCKS if kind == "text" for line in without_numbers(text) - printed}
