"""Keeping in the store what was quantised while it was loaded, so that the next load reads that alone."""

import json
import warnings
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from ..env import env
from ..errors import CheckpointError, InpageError, StoreError
from ..hub import StoreWarning
from .files import read_file
from .image import FORMAT, Image, ImageWriter
from .layouts import Dtype
from .plan import LoadingInfo
from .selection import Checkpoint

if TYPE_CHECKING:
    from ..hub import KeptFile, Manifest, Repository
    from ..models.modeling import PreTrainedModel

INFO_KEY = "inpage.loading_info"
LARGEST_PART = 0.75  # of the bytes of the source; what saves less is not kept


class Kept(NamedTuple):
    """What an earlier load left: its file, and what it reported."""

    source: "KeptFile"
    image: Image
    info: LoadingInfo


class Keeper:
    """Finds and keeps the weights of one model in one dtype. Made before the model is filled.

    The key tells apart dtypes, layouts of memory, and models that take other tensors of the same repository.
    """

    def __init__(
        self, model: "PreTrainedModel", repository: "Repository", dtype: Dtype, ignore_mismatched: bool
    ) -> None:
        self._model = model
        self._repository = repository
        self._dtype = "mixed" if isinstance(dtype, Mapping) else dtype or "fp32"
        self._shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        described = [FORMAT, list(dtype.items()) if isinstance(dtype, Mapping) else dtype, type(model).__name__]
        described += [list(self._shapes.items()), model.config.tie_word_embeddings, ignore_mismatched]
        self._key = sha256(json.dumps(described).encode()).hexdigest()[:32]
        self._enabled = env.keep_quantized and self._dtype not in ("fp32", "float32", "auto")

    async def find(self) -> Kept | None:
        """What is kept for this load; None if nothing is, or if it is damaged."""
        source = await self._repository.find_kept(self._key) if self._enabled else None
        if source is None:
            return None
        try:
            file = await read_file(source, source.file)
            return Kept(source, Image.of(file, self._shapes), LoadingInfo.from_json(file.metadata[INFO_KEY]))
        except (CheckpointError, StoreError, ValueError, KeyError, TypeError):
            await source.forget()
            return None

    async def prepare(self, checkpoint: Checkpoint) -> "Manifest | None":
        """Where the weights of a checkpoint, whose layouts are chosen, will be kept; None if they are not to be.

        They are if they are smaller than their source and there is a lasting place for them.
        """
        if not self._enabled or checkpoint.as_stored:
            return None
        nbytes = sum(parameter.nbytes for parameter in self._model.parameters())
        if nbytes > LARGEST_PART * sum(t.nbytes for file in checkpoint.files for t in file.tensors.values()):
            return None
        filename = f"model.{self._dtype}-{self._key[:8]}.safetensors"
        names = [file.name for file in checkpoint.files]
        try:
            return await self._repository.new_kept(self._key, filename, names, nbytes)
        except InpageError:  # if it is of the source, the load will tell
            return None

    async def stored(self, checkpoint: Checkpoint) -> set[str]:
        """Files of a checkpoint that the store has already: somebody may still want them."""
        return {file.name for file in checkpoint.files if await self._repository.is_stored(file.name)}

    async def keep(self, new: "Manifest", info: LoadingInfo, leftovers: set[str]) -> None:
        """Keep the loaded weights, then remove `leftovers` of the source. It is no error if that fails."""
        writer = ImageWriter(self._model, {INFO_KEY: info.to_json()})
        try:
            await self._repository.write_kept(new, writer.nbytes, writer.pieces())
            for name in leftovers:
                await self._repository.forget(name)
        except Exception as error:  # the model is there all the same
            warnings.warn(
                f"The weights of {self._repository.name} could not be kept as they were quantised, so that the next "
                f"load quantises them again: {error}",
                StoreWarning,
                stacklevel=2,
            )
