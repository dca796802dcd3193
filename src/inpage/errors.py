"""One exception class per kind of failure, each with a stable `code`, which the page receives too, and a `hint`."""

from typing import Any, ClassVar


class InpageError(Exception):
    """Base of all errors raised on purpose.

    `message` says what failed, what was expected and what was found; `hint` says what to try. Keyword arguments
    become `details`, plain values that cross to the page with the error.
    """

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "", **details: Any) -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.hint = hint
        self.details = details


class ConfigError(InpageError):
    """A configuration file or setting is malformed or contradictory."""

    code = "config"


class UnsupportedError(InpageError):
    """A known option, architecture, task or dtype that this version does not implement."""

    code = "unsupported"


class InputError(InpageError, ValueError):
    """An argument of a call has the wrong type, shape or range."""

    code = "input"


class RemoteCodeError(InpageError):
    """The repository asks for code of its own to be run; that is always refused."""

    code = "remote_code"


class FileNotFoundInRepositoryError(InpageError, FileNotFoundError):
    """The repository, revision or file does not exist (HTTP 404, or no such local file)."""

    code = "not_found"


class AccessDeniedError(InpageError):
    """HTTP 401 or 403: gated or private repository, missing or wrong token."""

    code = "access_denied"


class NetworkError(InpageError):
    """The host could not be reached, refused (no CORS header), or failed, after retries."""

    code = "network"


class CorruptFileError(InpageError):
    """What arrived is not the file: wrong length, wrong hash, or an HTML page in its place."""

    code = "corrupt_file"


class StoreError(InpageError):
    """The store cannot keep a file, and degrading to memory is not possible either."""

    code = "store"


class OutdatedError(StoreError):
    """What the store has of a repository is of an earlier version of it; that was removed, and a new load is right."""


class CheckpointError(InpageError):
    """A checkpoint file breaks its format, or does not fit the model."""

    code = "checkpoint"


class MismatchedShapesError(CheckpointError):
    """Tensors of the checkpoint have other shapes than the model's parameters."""

    code = "mismatched_shapes"


class OutOfMemoryError(InpageError, MemoryError):
    """Kernel memory cannot grow to what is needed."""

    code = "out_of_memory"


class KernelError(InpageError):
    """A kernel refused its operands at run time, such as a token id outside the vocabulary."""

    code = "kernel"


class AbortError(InpageError):
    """The caller aborted the operation."""

    code = "aborted"


class DisposedError(InpageError):
    """The object was used after `dispose()`."""

    code = "disposed"
