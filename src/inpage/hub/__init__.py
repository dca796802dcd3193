"""Model repositories: which files they have, where they are, how they arrive, and where they are kept."""

from .cache import delete_cached, find_outdated, list_cached
from .chunk import Chunk
from .kept import KeptFile
from .progress import Progress, ProgressCallback
from .repository import Repository
from .store import Manifest, StoreWarning
from .stream import FileStream

__all__ = [
    "Chunk",
    "FileStream",
    "KeptFile",
    "Manifest",
    "Progress",
    "ProgressCallback",
    "Repository",
    "StoreWarning",
    "delete_cached",
    "find_outdated",
    "list_cached",
]
