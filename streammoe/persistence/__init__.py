"""Keeping what was learned: the checkpoint format, durable files, generations and the lock of a folder."""

from streammoe.persistence.durable import replace
from streammoe.persistence.format import FORMAT, Checkpoint, NewerCheckpointError, decode, encode, pieces, state_digest
from streammoe.persistence.lock import LOCK_NAME, FolderLock
from streammoe.persistence.store import CONFIRMED, CheckpointStore, generation_of, read_checkpoint

__all__ = [
    "CONFIRMED",
    "FORMAT",
    "LOCK_NAME",
    "Checkpoint",
    "CheckpointStore",
    "FolderLock",
    "NewerCheckpointError",
    "decode",
    "encode",
    "generation_of",
    "pieces",
    "read_checkpoint",
    "replace",
    "state_digest",
]
