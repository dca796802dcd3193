"""Model repositories: which files they have, where they are, how they arrive, and where they are kept."""

from .cache import delete_cached, find_outdated, list_cached
from .chunk import Chunk
from .progress import Progress, ProgressCallback
from .repository import FileStream, Repository
from .store import StoreWarning

__all__ = [
    "Chunk",
    "FileStream",
    "Progress",
    "ProgressCallback",
    "Repository",
    "StoreWarning",
    "delete_cached",
    "find_outdated",
    "list_cached",
]
