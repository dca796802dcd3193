"""From the tensors of safetensors files to the parameters of a model."""

from .conversion import Concatenate, Split, Transpose, WeightConversion, WeightConverter, WeightRenaming
from .loader import check_dtype, load_weights
from .plan import LoadingInfo

__all__ = [
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
