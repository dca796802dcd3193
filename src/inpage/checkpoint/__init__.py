"""From the tensors of safetensors files to the parameters of a model."""

from .conversion import Concatenate, Split, Transpose, WeightConversion, WeightConverter, WeightRenaming
from .files import SINGLE as WEIGHTS_FILE
from .layouts import Dtype, check_dtype
from .loader import load_weights
from .plan import LoadingInfo
from .writer import CheckpointWriter

__all__ = [
    "WEIGHTS_FILE",
    "CheckpointWriter",
    "Concatenate",
    "Dtype",
    "LoadingInfo",
    "Split",
    "Transpose",
    "WeightConversion",
    "WeightConverter",
    "WeightRenaming",
    "check_dtype",
    "load_weights",
]
