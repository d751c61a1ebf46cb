"""Configurations as an enemy, or a tired user, would write them."""

import json
from pathlib import Path

from streammoe.configuration import load_settings
from streammoe.errors import ConfigError

CONFIG = Path(__file__).parents[2] / "config"
DEFAULT = (CONFIG / "default.toml").read_text(encoding="utf-8")
FILES = (DEFAULT, *(path.read_text("utf-8") for path in sorted(CONFIG.glob("examples/*.toml"))))
SECTIONS = "source schema labels model model.schedule checkpoint metrics predictions dead_letters".split()  # noqa: SIM905
NAMES = [line.split("=")[0].strip(" #") for line in DEFAULT.splitlines() if "=" in line and not line.startswith("[")]
VALUES = (
    *("true", "-1", "0", "1", "0.5", "9" * 400, "9" * 5000, "9223372036854775808", "1e999", "-1e308", "nan", "-inf"),
    *(
        "0x" + "f" * 300,
        "1979-05-27T07:32:00Z",
        "07:32:00",
        '""',
        '"*"',
        '"file"',
        '"kafka"',
        '"stdin"',
        '"classifier"',
    ),
    *(r'"a\u0000b"', r'"\u001b[2J\nerror: forged"', '"ü\U0001f600" ', '"' + "x" * 10_000 + '"', "[" * 200 + "]" * 200),
    *('"../../../etc/passwd"', '"//user:secret@host"', "[]", "{}", '["y", "y"]', '["a", 1, [2, {b = 3}]]'),
    *('{ kind = "constant", gamma = 2 }', '{ kind = ["power"] }', "{ a = { b = { c = {} } } }"),
)
ODD_FLAGS = ("", "=", "a", "a=b", ".=1", "source.=1", "source..a=1", "model.schedule.gamma.x=1", "\x1b=")


def config(pick):
    """Bytes of a file, environment variables and flags; `pick` is a `random.Random`."""
    data = pick.choice(FILES).encode()
    for _ in range(pick.randrange(4)):
        data = _spoilt(data, pick)
    variables = {
        f"STREAMMOE_{_name(pick).replace('.', '__').upper()}": _value(pick) for _ in range(pick.choice((0, 0, 1, 2)))
    }
    flags = [f"{_name(pick)}={_value(pick)}" for _ in range(pick.choice((0, 0, 1, 3)))]
    if pick.random() < 0.1:
        flags.append(pick.choice(ODD_FLAGS))
    return data, variables, flags


def attack_config(case, folder):
    """Read a configuration; what went wrong, which must be a list of sentences, or ``None``."""
    data, variables, flags = case
    path = Path(folder, "config.toml")
    path.write_bytes(data)
    try:
        settings = load_settings(path, environment=variables, overrides=flags)
    except ConfigError as error:
        problems = error.problems
    else:
        json.dumps(settings.learning_settings())
        return None
    assert problems
    assert all(problem.strip() and len(problem) < 5_000 for problem in problems), problems
    return ConfigError(" ".join(problems))


def _spoilt(data, pick):
    lines = data.split(b"\n")
    at = pick.randrange(len(lines))
    match pick.randrange(7):
        case 0:
            cut = pick.randrange(len(data) + 1)
            return data[:cut] + bytes([pick.randrange(256)]) + data[cut + pick.randrange(3) :]
        case 1:
            return data[: pick.randrange(len(data) + 1)]
        case 2:
            del lines[at]
        case 3:
            lines.insert(at, lines[pick.randrange(len(lines))])
        case 4:
            lines.insert(at, f"[{pick.choice(SECTIONS)}]".encode())
        case 5:
            lines.insert(at, f"{pick.choice(NAMES)} = {pick.choice(VALUES)}".encode())
        case _:
            name, equals, _ = lines[at].partition(b"=")
            if equals:
                lines[at] = name.lstrip(b"# ") + b"= " + pick.choice(VALUES).encode()
    return b"\n".join(lines)


def _name(pick):
    return f"{pick.choice(SECTIONS)}.{pick.choice(NAMES)}"


def _value(pick):
    value = pick.choice(VALUES)
    return value.strip('"') if pick.random() < 0.5 else value
