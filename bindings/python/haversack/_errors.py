"""What can go wrong, by what a caller can do about it."""

from __future__ import annotations


class Error(Exception):
    """Every error of the library. ``kind`` is stable, the text is not."""

    kind: str = "internal"


class InvalidInput(Error, ValueError):
    """An argument is wrong; the same call fails again."""

    kind = "invalid_input"


class NotFound(Error, LookupError):
    """No such conversation, fact, turn or file."""

    kind = "not_found"


class Conflict(Error):
    """The conversation is busy with another answer, or its name is taken."""

    kind = "conflict"


class Busy(Error):
    """All places in the queue are taken; try again later."""

    kind = "busy"


class TooLarge(Error, ValueError):
    """The prompt or the answer is longer than the context or the memory limit ever allows."""

    kind = "too_large"


class OutOfMemory(Error, MemoryError):
    """The memory limit has no room now; try again when other answers have ended."""

    kind = "out_of_memory"


class Unsupported(Error):
    """The engine was opened without what the call needs, or in another process."""

    kind = "unsupported"


class Cancelled(Error):
    """The answer ended before it was complete."""

    kind = "cancelled"


class Closed(Error):
    """The engine is closed."""

    kind = "closed"


class Io(Error, OSError):
    """A file could not be read or written."""

    kind = "io"


class Internal(Error, RuntimeError):
    """A defect of the model file or of the library."""

    kind = "internal"
