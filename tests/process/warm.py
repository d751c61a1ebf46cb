"""What the server imports from which `workspace` forks commands: all that a daemon over files needs."""

from streammoe.daemon.model import compile_kernels

compile_kernels()
