"""Durable storage: the checkpoint format, atomic files, checkpoint generations and the folder lock."""

from streammoe.persistence.format import FORMAT, Checkpoint, NewerCheckpointError, decode, encode, pieces, state_digest
from streammoe.persistence.lock import LOCK_NAME, FolderLock
from streammoe.persistence.store import CONFIRMED, STATUS, CheckpointStore, generation_of, read_checkpoint

__all__ = [
    "CONFIRMED",
    "FORMAT",
    "LOCK_NAME",
    "STATUS",
    "Checkpoint",
    "CheckpointStore",
    "FolderLock",
    "NewerCheckpointError",
    "decode",
    "encode",
    "generation_of",
    "pieces",
    "read_checkpoint",
    "state_digest",
]
