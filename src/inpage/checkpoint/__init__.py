"""From the tensors of safetensors files to the parameters of a model."""

from .conversion import Concatenate, Split, Transpose, WeightConversion, WeightConverter, WeightRenaming
from .files import SINGLE as WEIGHTS_FILE
from .loader import check_dtype, load_weights
from .plan import LoadingInfo

__all__ = [
    "WEIGHTS_FILE",
    "Concatenate",
    "LoadingInfo",
    "Split",
    "Transpose",
    "WeightConversion",
    "WeightConverter",
    "WeightRenaming",
    "check_dtype",
    "load_weights",
]
