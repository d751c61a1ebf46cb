"""Check the Dockerfile, and rehearse its steps without a Docker engine.

First the file is checked against a few rules (and hadolint's, if that is on PATH). Then its instructions are executed
one by one in folders that stand for the stages: a fresh virtual environment is each stage's Python, COPY respects
.dockerignore, RUN lines run with image paths replaced by temporary ones, USER drops privileges. At the end the entry
point runs there, using only the compiled kernels; a daemon is started, its health checked, and stopped. Everything is
read from the Dockerfile, so the check cannot diverge from it. One long file, so that it runs without the package.

Not covered: the content of the base image, and system packages (the Dockerfile installs none).

The script is self-contained, because it must run with nothing but Python installed.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

REPOSITORY = Path(__file__).resolve().parent.parent
STEP_TIMEOUT = 3_600.0
"""Seconds for one RUN line; pip fetches some 300 MB."""
MOST_INSTALLED = 450
"""Megabytes (of 2**20 bytes, as `du -m` counts) that packages may take on disk."""
STALL_TIMEOUT = 300.0
"""Seconds without an answer that count as a daemon that hangs. An idle machine starts and stops one in 2 s each, and
`docker stop` waits for 10, but this check runs next to the tests; it prints how long the stop took."""


class CheckError(Exception):
    """The Dockerfile, or the image that it would build, is not usable."""


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instruction:
    """One instruction of the Dockerfile, with continuation lines joined."""

    line: int
    name: str
    rest: str

    def flags(self) -> tuple[dict[str, str], str]:
        """Split into leading ``--key=value`` flags and the rest."""
        rest, found = self.rest, {}
        while match := re.match(r"--([\w-]+)=(\S+)\s+", rest):
            found[match[1]] = match[2]
            rest = rest[match.end() :]
        return found, rest

    def exec_form(self) -> list[str] | None:
        """Return the words of a JSON array, or ``None`` for the shell form."""
        try:
            words = json.loads(self.rest)
        except ValueError:
            return None
        return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def read_dockerfile(path: Path) -> list[Instruction]:
    """Split a Dockerfile into instructions."""
    instructions: list[Instruction] = []
    parts: list[str] = []
    start = 0
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if not parts:
            start = number
        parts.append(stripped.removesuffix("\\").strip())
        if not stripped.endswith("\\"):
            name, _, rest = " ".join(parts).partition(" ")
            instructions.append(Instruction(start, name.upper(), rest.strip()))
            parts = []
    if parts:
        raise CheckError(f"{path}:{start}: the last instruction ends with a backslash")
    return instructions


# --- rules -----------------------------------------------------------------------------------------------------------


def broken_rules(instructions: list[Instruction]) -> Iterator[str]:
    """Yield a message for each rule that the Dockerfile violates."""
    if not instructions or instructions[0].name != "FROM":
        yield "line 1: the first instruction must be FROM"
        return
    stages = {i.rest.split()[2] for i in instructions if i.name == "FROM" and len(i.rest.split()) == 3}
    for instruction in instructions:
        at = f"line {instruction.line}: {instruction.name}"
        if instruction.name == "FROM":
            image = instruction.rest.split()[0]
            tag, _, digest = image.rpartition("/")[2].partition(":")[2].partition("@")
            if image not in stages and (tag in {"", "latest"} or not digest):
                yield f"{at} {image}: specify a version and its digest, rather than whatever is the latest one"
        if instruction.name == "ADD":
            yield f"{at}: use COPY; ADD implicitly unpacks archives and downloads URLs"
        if instruction.name in {"ENTRYPOINT", "CMD"} and instruction.exec_form() is None:
            yield f"{at}: use the JSON form; a shell in between would not forward signals to the daemon"
        if instruction.name == "RUN":
            if re.search(r"\bsudo\b", instruction.rest):
                yield f"{at}: no sudo; order the steps around USER"
            if re.search(r"\bpip3?\b.*\b(install|wheel)\b", instruction.rest) and "--no-cache" not in instruction.rest:
                yield f"{at}: pip without --no-cache-dir leaves its cache in the layer"
            if re.search(r"\b(curl|wget)\b", instruction.rest):
                yield f"{at}: downloads something that no package manager has verified"
        if instruction.name in {"ENV", "ARG"} and re.search(r"(?i)(password|secret|token)\w*=", instruction.rest):
            yield f"{at}: a secret would remain readable in the image"

    last = instructions[max(n for n, i in enumerate(instructions) if i.name == "FROM") :]
    names = [i.name for i in last]
    for required in ("USER", "HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "VOLUME"):
        if required not in names:
            yield f"the last stage has no {required}"
    users = [i for i in last if i.name == "USER"]
    if users:
        if users[-1].rest.split(":")[0] in {"root", "0"}:
            yield f"line {users[-1].line}: USER: the daemon must not run as root"
        first = names.index("USER")
        if any(i.name == "RUN" and re.search(r"\b(pip|apt-get|apk)\b", i.rest) for i in last[first:]):
            yield f"line {users[0].line}: USER: comes after the installs, so that the user cannot change the program"


def run_hadolint(path: Path) -> bool:
    """Run hadolint if it is installed; return whether it is."""
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        return False
    result = subprocess.run([hadolint, "--no-color", str(path)], check=False, capture_output=True, text=True)
    if result.returncode:
        raise CheckError(f"hadolint:\n{result.stdout}{result.stderr}")
    return True


# --- rehearsal -------------------------------------------------------------------------------------------------------


def ignored(relative: PurePosixPath, patterns: list[str]) -> bool:
    """Return whether .dockerignore excludes a file: the last pattern that matches it or a parent decides."""
    out = False
    candidates = [str(relative), *(str(parent) for parent in relative.parents if str(parent) != ".")]
    for pattern in patterns:
        bare = pattern.removeprefix("!").strip("/")
        if any(_matches(PurePosixPath(candidate), bare) for candidate in candidates):
            out = not pattern.startswith("!")
    return out


def _matches(path: PurePosixPath, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return any(
            _matches(PurePosixPath(*path.parts[start:]), pattern.removeprefix("**/"))
            for start in range(len(path.parts))
        )
    parts = pattern.split("/")
    return len(parts) == len(path.parts) and all(map(fnmatch.fnmatchcase, path.parts, parts))


@dataclass
class Stage:
    """A folder that stands for a stage's file system, and the settings made by its instructions so far."""

    root: Path
    environment: dict[str, str]
    workdir: str = "/"
    base: str = ""
    """The image that it begins with."""
    user: tuple[int, int] | None = None
    metadata: dict[str, Instruction] = field(default_factory=dict)

    def path(self, image_path: str) -> Path:
        """Map a path in the image to the rehearsal."""
        return self.root / str(PurePosixPath(self.workdir, image_path)).lstrip("/")

    def rewrite(self, text: str) -> str:
        """Replace absolute paths of the image by those of the rehearsal, except devices and URLs."""
        return re.sub(r"(?<![\w./:*\]-])/(?!dev/|proc/|bin/|usr/bin/|/)(?=\w)", lambda _: f"{self.root}/", text)

    def run(self, command: list[str], timeout: float = STEP_TIMEOUT) -> subprocess.CompletedProcess[str]:
        """Run a command as the stage's user in its working directory."""
        return subprocess.run(
            self.as_user(command),
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=self.path("."),
            env=self.environment,
        )

    def as_user(self, command: list[str]) -> list[str]:
        """Return the command with privileges dropped, if there are any to drop."""
        if self.user is None or os.geteuid() != 0:
            return command
        user, group = self.user
        return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs", *command]


class Rehearsal:
    """Executor of a Dockerfile's instructions below `scratch`."""

    def __init__(self, instructions: list[Instruction], context: Path, scratch: Path) -> None:
        self.instructions = instructions
        self.context = context
        self.scratch = scratch
        self.stages: dict[str, Stage] = {}
        ignore_file = context / ".dockerignore"
        lines = ignore_file.read_text(encoding="utf-8").splitlines() if ignore_file.exists() else []
        self.patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]

    def build(self) -> Stage:
        """Build every stage; the last one is the image."""
        stage: Stage | None = None
        for instruction in self.instructions:
            print(f"  {instruction.name} {instruction.rest}"[:120], flush=True)
            if instruction.name == "FROM":
                stage = self._from(instruction)
                continue
            if stage is None:
                raise CheckError(f"line {instruction.line}: {instruction.name} before FROM")
            if instruction.name in {"HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "CMD", "VOLUME", "EXPOSE", "LABEL"}:
                stage.metadata[instruction.name] = instruction
                continue
            step = getattr(self, f"_{instruction.name.lower()}", None)
            if step is None:
                raise CheckError(
                    f"line {instruction.line}: {instruction.name} cannot be rehearsed; extend {Path(__file__).name}"
                )
            step(stage, instruction)
        if stage is None:
            raise CheckError("the Dockerfile has no stage")
        return stage

    def _from(self, instruction: Instruction) -> Stage:
        image, *rest = instruction.rest.split()
        if image in self.stages:  # they begin as empty as what they are named after
            image = self.stages[image].base
        match = re.fullmatch(r"python:(\d+\.\d+)(-slim)?(-\w+)?(@sha256:[0-9a-f]{64})?", image)
        if match is None:
            raise CheckError(f"line {instruction.line}: FROM {image}: only python:X.Y images can be rehearsed")
        root = self.scratch / f"stage{len(self.stages)}"
        stage = Stage(root, {}, base=image)
        home = stage.path("/usr/local")
        home.parent.mkdir(parents=True)
        stage.path("/tmp").mkdir()  # noqa: S108 - the image's own
        stage.path("/tmp").chmod(0o1777)  # noqa: S108 - regardless of the umask
        stage.path("/root").mkdir()
        subprocess.run([find_python(match[1]), "-m", "venv", str(home)], check=True)
        # Nothing of the caller's environment is inherited, except for pip's and TLS's access to the network.
        carried = {k: v for k, v in os.environ.items() if re.match(r"(?i)(pip_|(https?|no|all)_proxy|ssl_cert)", k)}
        stage.environment = {
            **carried,
            "PATH": f"{home}/bin:{self._tools()}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(stage.path("/root")),
            "TMPDIR": str(stage.path("/tmp")),  # noqa: S108
            "LANG": "C.UTF-8",
        }
        self.stages[rest[1] if rest else f"#{len(self.stages)}"] = stage
        return stage

    def _tools(self) -> Path:
        """Create stand-ins for commands that the rehearsal may not run: changing owners requires root."""
        tools = self.scratch / "tools"
        if not tools.exists():
            tools.mkdir()
            if os.geteuid() != 0:
                (tools / "chown").write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
                (tools / "chown").chmod(0o755)
        return tools

    def _workdir(self, stage: Stage, instruction: Instruction) -> None:
        stage.workdir = str(PurePosixPath(stage.workdir, instruction.rest))
        stage.path(".").mkdir(parents=True, exist_ok=True)

    def _env(self, stage: Stage, instruction: Instruction) -> None:
        for word in shlex.split(instruction.rest):
            name, equals, value = word.partition("=")
            if not equals:
                raise CheckError(f"line {instruction.line}: ENV {word}: write NAME=value")
            stage.environment[name] = stage.rewrite(value)

    def _arg(self, stage: Stage, instruction: Instruction) -> None:
        """Set a variable of the build, with its default."""
        name, _, value = instruction.rest.partition("=")
        stage.environment[name] = value

    def _user(self, stage: Stage, instruction: Instruction) -> None:
        match = re.fullmatch(r"(\d+):(\d+)", instruction.rest)
        if match is None:
            raise CheckError(f"line {instruction.line}: USER {instruction.rest}: write numbers, user:group")
        stage.user = int(match[1]), int(match[2])

    def _copy(self, stage: Stage, instruction: Instruction) -> None:
        flags, rest = instruction.flags()
        if unknown := set(flags) - {"from"}:
            raise CheckError(f"line {instruction.line}: COPY --{unknown.pop()} cannot be rehearsed")
        *sources, target = rest.split()
        for source in sources:
            if "from" in flags:
                self._copy_tree(self.stages[flags["from"]].path(source), stage.path(target), [])
            else:
                self._copy_tree(self.context / source, stage.path(target), self.patterns)

    def _copy_tree(self, source: Path, target: Path, patterns: list[str]) -> None:
        if source.is_file():
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / source.name)
            return
        for folder, folders, files in os.walk(source):
            # An ignored folder may contain a file that a later pattern includes again; hidden folders do not.
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in files:
                relative = (Path(folder) / name).relative_to(source)
                if not ignored(PurePosixPath(relative.as_posix()), patterns):
                    (target / relative).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(source / relative, target / relative)

    def _run(self, stage: Stage, instruction: Instruction) -> None:
        if instruction.rest.startswith(("--", "[")):
            raise CheckError(f"line {instruction.line}: RUN: only the plain shell form can be rehearsed")
        result = stage.run(["/bin/sh", "-c", stage.rewrite(instruction.rest)])
        if result.returncode:
            raise CheckError(
                f"line {instruction.line}: RUN ended with {result.returncode}:\n{result.stdout}{result.stderr}"
            )


def find_python(version: str) -> str:
    """Find an interpreter of the image's version that any user may run, for the virtual environments."""
    for candidate in (f"/usr/bin/python{version}", f"/usr/local/bin/python{version}", sys.executable):
        probe = [candidate, "-c", "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])"]
        if os.geteuid() == 0:
            probe = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *probe]
        try:
            result = subprocess.run(probe, check=False, capture_output=True, text=True)
        except OSError:
            continue
        if result.returncode == 0 and result.stdout.strip() == version:
            return candidate
    raise CheckError(f"the image has Python {version}; no such interpreter here that an unprivileged user may run")


# --- the finished image ----------------------------------------------------------------------------------------------


def forget_fractions(root: Path) -> None:
    """Cut file times to whole seconds, as an image's layers do when it is pushed and pulled.

    A kernel cache that trusted the fraction would count as stale in every container.
    """
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            seconds = int(path.stat().st_mtime)
            os.utime(path, (seconds, seconds))


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Return sizes and times of all files below a folder."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def volumes(image: Stage) -> list[Path]:
    """Return the volumes: all that the image may write to, except /tmp."""
    instruction = image.metadata["VOLUME"]
    return [image.path(name) for name in instruction.exec_form() or instruction.rest.split()]


def fixed_files(image: Stage) -> Iterator[Path]:
    """Return all files and folders of the image on its read-only root file system."""
    writable = {*volumes(image), image.path("/tmp")}  # noqa: S108 - the image's own
    for folder, folders, files in os.walk(image.root):
        folders[:] = [name for name in folders if Path(folder, name) not in writable]
        yield Path(folder)
        yield from (Path(folder, name) for name in files)


def make_read_only(image: Stage) -> None:
    """Stand in for ``docker run --read-only --tmpfs /tmp``: only volumes and /tmp are writable.

    By permissions, since mounting needs privileges: files and folders belong to root, where this is root, and have no
    permission to write. The image's user is another one, so that it cannot help itself.
    """
    for path in fixed_files(image):
        if path.is_symlink():
            continue
        if os.geteuid() == 0:
            os.chown(path, 0, 0)
        path.chmod(path.stat().st_mode & ~0o222)


def make_writable(root: Path) -> None:
    """Undo `make_read_only` for the owner, so that the folder can be removed."""
    for folder, _, _ in os.walk(root):
        Path(folder).chmod(0o755)


def fixed_state(image: Stage) -> dict[str, tuple[int, int]]:
    """Return sizes and times of everything that must not change."""
    state = {}
    for path in fixed_files(image):
        status = path.lstat()
        state[str(path.relative_to(image.root))] = (status.st_size, status.st_mtime_ns)
    return state


def check_nothing_can_be_written(image: Stage) -> None:
    """Check that `make_read_only` is effective for the image's user, and that the volumes are writable."""
    script = "import os, sys; print(*(os.access(name, os.W_OK) for name in sys.argv[1:]))"
    places = [image.path("."), *volumes(image), image.path("/tmp")]  # noqa: S108 - the image's own
    closed = [image.root, image.path("/usr/local"), image.path("/etc/streammoe"), image.path("/root")]
    answer = image.run(["python", "-c", script, *map(str, places), *map(str, closed)]).stdout.split()
    if answer != ["True"] * len(places) + ["False"] * len(closed):
        raise CheckError(f"of {[*places, *closed]} the image's user may write to: {answer}")


def compiled_kernels(image: Stage) -> dict[str, tuple[int, int]]:
    """Return the files of the kernel cache, which must not be empty."""
    cache = Path(image.environment["NUMBA_CACHE_DIR"])
    files = snapshot(cache)
    if not any(name.endswith(".nbc") for name in files):
        raise CheckError(f"no compiled kernel in NUMBA_CACHE_DIR ({cache}) after the build")
    return files


def check_entry_point(image: Stage) -> None:
    """Run the entry point as the image's user."""
    entry = image.metadata["ENTRYPOINT"].exec_form() or []
    for arguments in (["--help"], ["demo"]):
        started = time.monotonic()
        result = image.run([*entry, *arguments])
        if result.returncode:
            raise CheckError(
                f"{shlex.join([*entry, *arguments])} ended with {result.returncode}:\n{result.stdout}{result.stderr}"
            )
        print(f"  {shlex.join([*entry, *arguments])}: {time.monotonic() - started:.1f} s", flush=True)


CONFIG = """\
[source]
kind = "file"
path = "{data}"

[schema]
target = "y"

[model]
n_experts = 32
warmup = 0
standardize = false

[checkpoint]
stop_seconds = 300 # the tests run beside it
dir = "{state}"

[dead_letters]
path = "{state}/dead-letters.jsonl"
"""
COLUMNS = 30
ROWS = 200_000
"""Expensive events (32 experts, 30 columns), so that the daemon is still learning when it is stopped; `user` is an
identifier, whose kernel must have been compiled as well."""


def write_config(image: Stage) -> Path:
    """Write a configuration where CMD expects it, and a long file to read; return the former."""
    data = image.path("/var/lib/streammoe/events.csv")
    block = "".join(
        ",".join([*(str((i * j) % 23) for j in range(1, COLUMNS + 2)), f"u{i}"]) + "\n" for i in range(1000)
    )
    header = ",".join([*(f"x{j}" for j in range(COLUMNS)), "y", "user"])
    data.write_text(f"{header}\n{block * (ROWS // 1000)}", encoding="utf-8")
    command = image.metadata["CMD"].exec_form() or []
    config = Path(image.rewrite(command[-1]))
    config.write_text(CONFIG.format(data=data, state=data.parent / "state"), encoding="utf-8")
    return config


def is_ready(port: int) -> bool:
    """Return whether a daemon is reading."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
            return True
    except OSError:
        return False


def check_size(image: Stage) -> None:
    """Add up what is installed, pip included."""
    installed = next(image.path("/usr/local/lib").glob("python*/site-packages"))
    size = sum(path.stat().st_blocks * 512 for path in installed.rglob("*") if path.is_file()) / 2**20
    if size > MOST_INSTALLED:
        raise CheckError(f"packages take {size:.0f} MB, more than {MOST_INSTALLED}: what is new, and is it needed?")
    print(f"  packages: {size:.0f} MB", flush=True)


def check_daemon(image: Stage, config: Path) -> None:
    """Start CMD on a long file, check its health as the image does, and stop it as Docker does."""
    health = re.search(r"CMD\s+(\[.*)$", image.metadata["HEALTHCHECK"].rest)
    port = int(image.metadata["EXPOSE"].rest)
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise CheckError(
                f"port {port} is in use here, so the health check would reach another process; free it first"
            )
    command = image.metadata["CMD"].exec_form() or []
    entry = image.metadata["ENTRYPOINT"].exec_form() or []
    argv = image.as_user([*entry, *command[:-1], str(config)])
    with subprocess.Popen(
        argv, cwd=image.path("."), env=image.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as daemon:
        try:
            ask = [str(config) if word == command[-1] else word for word in json.loads(health[1] if health else "[]")]
            deadline = time.monotonic() + STALL_TIMEOUT
            while (answer := image.run(ask, timeout=STALL_TIMEOUT)).returncode:
                if daemon.poll() is not None or time.monotonic() > deadline:
                    daemon.kill()
                    raise CheckError(f"HEALTHCHECK never succeeded:\n{answer.stderr}\n{daemon.communicate()[0]}")
                time.sleep(0.2)
            while not is_ready(port):  # before that a signal ends it at once, because there is nothing to save
                if daemon.poll() is not None or time.monotonic() > deadline:
                    daemon.kill()
                    raise CheckError(f"the daemon was never ready:\n{daemon.communicate()[0]}")
                time.sleep(0.05)
            asked = time.monotonic()
            daemon.send_signal(getattr(signal, image.metadata["STOPSIGNAL"].rest))
            try:
                output = daemon.communicate(timeout=STALL_TIMEOUT)[0]
            except subprocess.TimeoutExpired as error:
                daemon.kill()
                raise CheckError(
                    f"the daemon had not stopped after {STALL_TIMEOUT:g} s:\n{daemon.communicate()[0]}"
                ) from error
        finally:
            daemon.kill()
    if daemon.returncode:
        raise CheckError(
            f"after {image.metadata['STOPSIGNAL'].rest} the daemon ended with {daemon.returncode}:\n{output}"
        )
    print(f"  daemon: healthy, stopped with exit code 0 after {time.monotonic() - asked:.1f} s", flush=True)


def main() -> int:
    """Run the checks; return 0 if all of them pass."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lint-only", action="store_true", help="only read the Dockerfile; build nothing")
    parser.add_argument("--keep", action="store_true", help="keep the rehearsal's folder, to look around")
    options = parser.parse_args()

    dockerfile = REPOSITORY / "Dockerfile"
    scratch = Path(tempfile.mkdtemp(prefix="streammoe-image-"))
    scratch.chmod(0o755)  # the image's user needs access
    try:
        instructions = read_dockerfile(dockerfile)
        problems = list(broken_rules(instructions))
        if problems:
            raise CheckError("\n".join(f"Dockerfile: {problem}" for problem in problems))
        print(
            "Dockerfile: rules pass", "and hadolint, too" if run_hadolint(dockerfile) else "(hadolint is not installed)"
        )
        if options.lint_only:
            return 0
        if os.geteuid() != 0:
            print("not root: USER and chown are not rehearsed")
        image = Rehearsal(instructions, REPOSITORY, scratch).build()
        forget_fractions(image.root)
        kernels = compiled_kernels(image)
        check_size(image)
        check_entry_point(image)
        config = write_config(image)
        make_read_only(image)
        check_nothing_can_be_written(image)
        before = fixed_state(image)
        check_daemon(image, config)
        if changed := sorted(name for name, state in fixed_state(image).items() if before.get(name) != state):
            raise CheckError(f"written outside of the volumes and /tmp: {', '.join(changed)}")
        print("  read-only root: nothing was written except to the volumes and /tmp", flush=True)
        # Not by a read-only cache: numba would silently ignore it and compile everything elsewhere.
        if changed := dict(compiled_kernels(image).items() - kernels.items()):
            raise CheckError(f"compiled at run time, not at build time: {', '.join(sorted(changed))}")
    except (CheckError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if options.keep:
            print(f"kept: {scratch}")
        else:
            make_writable(scratch)
            shutil.rmtree(scratch, ignore_errors=True)
    print("image: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
