"""Quantised checkpoints of other libraries, by the `quantization_config` of their config.json.

    compressed-tensors  "pack-quantized" with 4 bits in groups or whole rows, symmetric or not; "int-quantized" and
                        "pack-quantized" with 8 bits a row (the latter not packed here) become q8
    gptq                4 bits; checkpoint_format "gptq" and "gptq_v2"; rows in their order
    awq                 4 bits, version "gemm", with zero points

Four bits become q4 if the weights are symmetric, else q4z. Groups are multiples of 32 columns; larger ones repeat their
scale. Scales are rounded to float16, which is exact for F16, and for BF16 from 2^-17 on; so is the product of scale and
zero point. Everything else raises UnsupportedError.
"""

from collections.abc import Mapping
from typing import Any

from ..errors import CheckpointError, UnsupportedError
from ..optable import GROUP_SIZE
from .quantized import Bundle
from .safetensors import TensorInfo

Tensors = Mapping[str, TensorInfo]
SUPPORTED = ("compressed-tensors", "gptq", "awq")
SCALES = ("F16", "BF16", "F32")


def published_bundles(config: Mapping[str, Any], tensors: Tensors) -> dict[str, Bundle]:
    """Quantised weights of a checkpoint with this `quantization_config`, by the names they have unquantised.

    Raises UnsupportedError for methods and variants that cannot be converted exactly, CheckpointError for tensors that
    do not fit together.
    """
    method = config.get("quant_method")
    if method == "compressed-tensors":
        return _compressed(config, tensors)
    if method == "gptq":
        return _gptq(config, tensors)
    if method == "awq":
        return _awq(config, tensors)
    raise _unsupported(f"the quantisation method {method!r}", f"Supported are {', '.join(SUPPORTED)}")


def _compressed(config: Mapping[str, Any], tensors: Tensors) -> dict[str, Bundle]:
    named = config.get("config_groups") or {}
    try:
        schemes: list[dict[str, Any]] = [dict(group.get("weights") or {}) for group in named.values()]
    except (AttributeError, TypeError, ValueError):
        raise CheckpointError(
            f"config.json has malformed config_groups: {named!r:.80}.", hint="Expected groups by name, with weights."
        ) from None
    if config.get("quantization_status") not in ("compressed", None) or not schemes:
        raise _unsupported("a compressed-tensors checkpoint that is not compressed", "It has no quantised tensors")
    for scheme in schemes:
        _require(scheme.get("type", "int") == "int", "compressed-tensors weights that are not integers")
        _require(scheme.get("num_bits") in (4, 8), f"compressed-tensors weights of {scheme.get('num_bits')} bits")
    bits = {scheme["num_bits"] for scheme in schemes}
    found: dict[str, Bundle] = {}
    for name in _stems(tensors, ".weight_packed"):
        _require(f"{name}.weight_g_idx" not in tensors, "compressed-tensors weights in an order of activations")
        _require(bits == {4}, "compressed-tensors weights of 8 bits packed into int32")
        parts = {"q": f"{name}.weight_packed", "scale": f"{name}.weight_scale"}
        if f"{name}.weight_zero_point" in tensors:
            parts["zero"] = f"{name}.weight_zero_point"
        rows, words = _matrix(tensors, parts["q"], "I32")
        groups = _matrix(tensors, parts["scale"], *SCALES)[1]
        inner = 8 * words
        layout = "q4z" if "zero" in parts else "q4"
        _require(groups and inner % groups == 0, f"groups that do not divide the {inner} columns of {name}")
        expected = {"scale": (rows, groups), "zero": (-(-rows // 8), groups)}
        found[f"{name}.weight"] = _checked(
            Bundle(layout, (rows, inner), "compressed", inner // groups, parts), tensors, expected
        )
    for name in _stems(tensors, ".weight_scale"):
        if f"{name}.weight" in found or tensors.get(f"{name}.weight", TensorInfo("", (), 0, 0)).dtype != "I8":
            continue
        parts = {"q": f"{name}.weight", "scale": f"{name}.weight_scale"}
        _require(f"{name}.weight_zero_point" not in tensors, "compressed-tensors 8-bit weights with zero points")
        rows, inner = _matrix(tensors, parts["q"], "I8")
        shape = tensors[parts["scale"]].shape
        _require(shape in ((rows, 1), (rows,)), "compressed-tensors 8-bit weights with more or fewer scales than rows")
        found[f"{name}.weight"] = _checked(Bundle("q8", (rows, inner), "int8", inner, parts), tensors, {"scale": shape})
    return _found(found, "compressed-tensors")


def _gptq(config: Mapping[str, Any], tensors: Tensors) -> dict[str, Bundle]:
    _require(config.get("bits") == 4, f"GPTQ weights of {config.get('bits')} bits")
    packing = config.get("checkpoint_format") or "gptq"
    _require(packing in ("gptq", "gptq_v2"), f"the GPTQ checkpoint format {packing!r}")
    layout = "q4" if config.get("sym", True) else "q4z"
    found: dict[str, Bundle] = {}
    for name in _stems(tensors, ".qweight"):
        words, rows = _matrix(tensors, f"{name}.qweight", "I32")
        parts = _parts(name, tensors)
        if f"{name}.g_idx" in tensors:
            parts["order"] = f"{name}.g_idx"
        elif config.get("desc_act"):
            raise _unsupported(f"GPTQ weights in an order of activations ({name})", "Use one with desc_act false")
        found[f"{name}.weight"] = _transposed(layout, packing, (rows, 8 * words), config, parts, tensors)
    return _found(found, "gptq")


def _awq(config: Mapping[str, Any], tensors: Tensors) -> dict[str, Bundle]:
    bits = config.get("bits", config.get("w_bit"))
    _require(bits == 4, f"AWQ weights of {bits} bits")
    version = str(config.get("version", "gemm")).lower()
    _require(version == "gemm", f"the AWQ version {version!r}")
    _require(config.get("zero_point", True), "AWQ weights without zero points")
    found: dict[str, Bundle] = {}
    for name in _stems(tensors, ".qweight"):
        inner, words = _matrix(tensors, f"{name}.qweight", "I32")
        parts = _parts(name, tensors)
        found[f"{name}.weight"] = _transposed("q4z", "awq", (8 * words, inner), config, parts, tensors)
    return _found(found, "awq")


def _parts(name: str, tensors: Tensors) -> dict[str, str]:
    return {"q": f"{name}.qweight", "scale": f"{name}.scales", "zero": f"{name}.qzeros"}


def _transposed(
    layout: str,
    packing: str,
    shape: tuple[int, int],
    config: Mapping[str, Any],
    parts: dict[str, str],
    tensors: Tensors,
) -> Bundle:
    """A weight of GPTQ or AWQ, whose tensors have the inner dimension first."""
    rows, inner = shape
    size = config.get("group_size", config.get("q_group_size", 128))
    group = inner if size in (-1, None) else size
    _require(isinstance(group, int) and group > 0 and inner % group == 0, f"groups of {group} in {inner} columns")
    groups = inner // group
    expected = {"scale": (groups, rows), "zero": (groups, rows // 8), "order": (inner,)}
    return _checked(Bundle(layout, shape, packing, group, parts), tensors, expected)


def _checked(bundle: Bundle, tensors: Tensors, expected: Mapping[str, tuple[int, ...]]) -> Bundle:
    """The bundle, if all its tensors are there in the shapes that belong together."""
    if bundle.packing != "int8" and bundle.group % GROUP_SIZE:
        raise _unsupported(
            f"groups of {bundle.group} columns ({bundle.parts['q']})", f"Groups are multiples of {GROUP_SIZE}"
        )
    dtypes = {"scale": SCALES, "zero": ("I32",), "order": ("I32",)}
    for role, part in bundle.parts.items():
        info = tensors.get(part)
        if role == "q" or (info is not None and info.shape == expected[role] and info.dtype in dtypes[role]):
            continue
        found = "nothing" if info is None else f"{info.dtype} {list(info.shape)}"
        raise CheckpointError(
            f"{part!r} should be {' or '.join(dtypes[role])} {list(expected[role])}, found {found}.",
            hint="The checkpoint does not fit its quantization_config.",
        )
    return bundle


def _stems(tensors: Tensors, suffix: str) -> list[str]:
    return [name.removesuffix(suffix) for name in tensors if name.endswith(suffix)]


def _matrix(tensors: Tensors, name: str, *dtypes: str) -> tuple[int, int]:
    info = tensors.get(name)
    if info is None or len(info.shape) != 2 or info.dtype not in dtypes:
        found = "nothing" if info is None else f"{info.dtype} {list(info.shape)}"
        raise CheckpointError(
            f"{name!r} should be a matrix of {' or '.join(dtypes)}, found {found}.",
            hint="The checkpoint does not fit its quantization_config.",
        )
    return info.shape[0], info.shape[1]


def _found(bundles: dict[str, Bundle], method: str) -> dict[str, Bundle]:
    if not bundles:
        raise CheckpointError(
            f"config.json says that the weights are quantised by {method}, but no tensor is.",
            hint="The checkpoint does not fit its quantization_config.",
        )
    return bundles


def _require(condition: object, what: str) -> None:
    if not condition:
        raise _unsupported(what, "See inpage.checkpoint.published for what can be read")


def _unsupported(what: str, hint: str) -> UnsupportedError:
    return UnsupportedError(f"{what[:1].upper()}{what[1:]} cannot be read.", hint=f"{hint}.")
