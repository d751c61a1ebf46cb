"""Summaries of folders of global models, for `streammoe inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streammoe.commands.inspect import describe_checkpoint, newest_sound
from streammoe.errors import CheckpointError
from streammoe.scaleout.global_model import file_name, read, versions
from streammoe.scaleout.places import Folder


def inspect_folder(path: Path) -> dict[str, Any]:
    """Summarize the newest sound version in a folder of global models.

    Raises:
        CheckpointError: there is none.
    """
    place = Folder(path)
    entries = [_version_entry(place, version) for version in versions(place)]
    if not entries:
        raise CheckpointError(
            f"{path}: there is no checkpoint in this folder, and no global model; give a daemon's checkpoint.dir, or "
            "the folder that streammoe reduce writes (--out) once it has written a version"
        )
    newest = describe_checkpoint(newest_sound(path, entries, "global model"))
    return {"generation": None, "age_seconds": None, **newest, "versions": entries}


def _version_entry(place: Folder, version: int) -> dict[str, Any]:
    """Summarize one version of a global model: whether it is sound, and how many events it contains."""
    entry = {"version": version, "path": place.file(file_name(version))}
    try:
        found = read(place, version)
    except CheckpointError as error:
        return {**entry, "sound": False, "problem": str(error), "events": None}
    return {**entry, "sound": True, "problem": None, "events": found.n}
