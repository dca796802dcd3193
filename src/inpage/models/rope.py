"""Rotary position embeddings: frequencies by the configuration's `rope_type`.

Settings come as `rope_theta` and `rope_scaling` (transformers 4) or as `rope_parameters` (transformers 5, where layer
types may have settings of their own).
"""

import math
import struct
from collections.abc import Callable
from typing import Any

from .. import ops
from ..errors import ConfigError, UnsupportedError
from ..tensor import Tensor
from .configuration import PreTrainedConfig

# Of a head: beyond any model, so that a broken file does not fill the memory with frequencies.
MOST_FEATURES = 1 << 16


class RotaryEmbedding:
    """Frequencies of a rotary embedding and the tables of cosines and sines made of them.

    `dynamic` ones depend on the number of positions in use, so a recorded program takes them as an input.
    """

    def __init__(self, config: PreTrainedConfig, head_dim: int, layer_type: str = "", **settings: Any) -> None:
        self.settings = {**rope_settings(config, layer_type), **settings}
        self.kind: str = self.settings["rope_type"]
        if self.kind not in ROPE_TYPES:
            raise UnsupportedError(
                f"Unknown rope_type {self.kind!r}.", hint=f"Known are: {', '.join(ROPE_TYPES)}.", rope_type=self.kind
            )
        share = self.settings.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1.0
        self.dim = int(head_dim * share)
        if self.dim > MOST_FEATURES:
            raise ConfigError(
                f"Heads have up to {MOST_FEATURES:,} features, found {self.dim:,}.", hint="Check config.json."
            )
        theta = self.settings["rope_theta"]
        if not isinstance(theta, int | float) or not theta > 0:
            raise ConfigError(f"rope_theta must be above 0, found {theta!r:.60}.", hint="Check config.json.")
        self.theta = float(theta)
        self.max_positions: int = config.max_position_embeddings
        self.original: int = (
            self.settings.get("original_max_position_embeddings")
            or getattr(config, "original_max_position_embeddings", None)
            or self.max_positions
        )
        self.dynamic = self.kind in ("dynamic", "longrope")
        self.scale = self._scale()
        self.frequencies()  # what cannot be raises here, before weights are fetched

    def frequencies(self, length: int = 0) -> list[float]:
        """Radians a position, [dim / 2], where `length` positions are in use."""
        return ROPE_TYPES[self.kind](self, length)

    def changes(self, before: int, length: int) -> bool:
        """Whether tokens have other frequencies for good once the `before` positions in use have become `length`."""
        return self.kind == "longrope" and 0 < before <= self.original < length

    def tables(self, positions: Tensor, frequencies: Tensor | None = None) -> Tensor:
        """What `ops.rope` takes, for int32 positions [B, L]."""
        if frequencies is None:
            frequencies = ops.constant(self.frequencies(), "float32")
        return ops.rotary_tables(positions, frequencies, self.scale)

    def inverse(self, theta: float) -> list[float]:
        """1 / theta^(2 i / dim), each step rounded to float32, as the models were trained with."""
        return [_float32(1 / _float32(theta ** _float32(2 * i / self.dim))) for i in range(self.dim // 2)]

    def setting(self, name: str, default: Any = None) -> Any:
        value = self.settings.get(name, default)
        if value is None:
            raise ConfigError(f"rope_type {self.kind!r} needs {name}.", hint="Check rope_scaling in config.json.")
        return value

    def _scale(self) -> float:
        """Factor of cosines and sines."""
        given = self.settings.get("attention_factor")
        if given is not None or self.kind not in ("yarn", "longrope"):
            return 1.0 if given is None else float(given)
        if self.kind == "longrope":
            factor = self.settings.get("factor") or self.max_positions / self.original
            return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(self.original))
        factor = self.settings.get("factor") or self.max_positions / self.original
        mscale, mscale_all = self.settings.get("mscale"), self.settings.get("mscale_all_dim")
        if mscale and mscale_all:
            return _yarn_scale(factor, mscale) / _yarn_scale(factor, mscale_all)
        return _yarn_scale(factor, 1.0)


def rope_settings(config: PreTrainedConfig, layer_type: str = "") -> dict[str, Any]:
    """`rope_type`, `rope_theta` and what else the type takes, from either style of configuration."""
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if layer_type in given:
        given = given[layer_type]
    settings = {"rope_theta": getattr(config, "rope_theta", None) or 10000.0, **given}
    kind = settings.get("rope_type") or settings.get("type") or "default"
    settings["rope_type"] = {"su": "longrope", "mrope": "default"}.get(kind, kind)
    return settings


def _default(rope: RotaryEmbedding, length: int) -> list[float]:
    return rope.inverse(rope.theta)


def _linear(rope: RotaryEmbedding, length: int) -> list[float]:
    return [_float32(f / rope.setting("factor")) for f in rope.inverse(rope.theta)]


def _dynamic(rope: RotaryEmbedding, length: int) -> list[float]:
    """The base grows with the length."""
    factor, longest = rope.setting("factor"), rope.max_positions
    stretch = factor * max(length, longest) / longest - (factor - 1)
    return rope.inverse(rope.theta * stretch ** (rope.dim / (rope.dim - 2)))


def _yarn(rope: RotaryEmbedding, length: int) -> list[float]:
    """Low frequencies are stretched, high ones stay, with a ramp between."""
    factor = rope.settings.get("factor") or rope.max_positions / rope.original
    low, high = (_yarn_index(rope, rope.setting(name, value)) for name, value in (("beta_fast", 32), ("beta_slow", 1)))
    if rope.settings.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    width = high - low or 0.001
    ramp = [min(max((i - low) / width, 0), 1) for i in range(rope.dim // 2)]
    return [_float32(f / factor * r + f * (1 - r)) for f, r in zip(rope.inverse(rope.theta), ramp, strict=True)]


def _yarn_index(rope: RotaryEmbedding, turns: float) -> float:
    """Index of the frequency that turns `turns` times within the original length."""
    return rope.dim * math.log(rope.original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))


def _yarn_scale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1


def _longrope(rope: RotaryEmbedding, length: int) -> list[float]:
    """Divisors for each frequency, others beyond the original length."""
    divisors = rope.setting("long_factor" if length > rope.original else "short_factor")
    if len(divisors) != rope.dim // 2:
        raise ConfigError(f"longrope needs {rope.dim // 2} factors, found {len(divisors)}.")
    return [
        _float32(1 / _float32(_float32(divisor) * _float32(rope.theta ** _float32(2 * i / rope.dim))))
        for i, divisor in enumerate(divisors)
    ]


def _llama3(rope: RotaryEmbedding, length: int) -> list[float]:
    """Long waves are stretched, short ones stay, with a smooth change between."""
    factor, low, high = (rope.setting(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))

    def stretched(frequency: float) -> float:
        waves = rope.original * frequency / (2 * math.pi)  # within the original length
        share = min(max((waves - low) / (high - low), 0), 1)
        return _float32((1 - share) * frequency / factor + share * frequency)

    return [stretched(frequency) for frequency in rope.inverse(rope.theta)]


ROPE_TYPES: dict[str, Callable[[RotaryEmbedding, int], list[float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}


def _float32(x: float) -> float:
    return struct.unpack("f", struct.pack("f", x))[0]
