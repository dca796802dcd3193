"""LoRA adapters (Hu et al., 2021, https://arxiv.org/abs/2106.09685), in the files of the PEFT library.

An adapter adds scale * B A to the weights of linear layers. A and B stay parameters of their own, so that adapters work
over weights of any layout and change at run time; over float32 weights they can be merged.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .. import nn, ops
from ..checkpoint import WeightRenaming
from ..checkpoint.files import CheckpointFile, read_file
from ..checkpoint.initialize import owners
from ..checkpoint.loader import load_parameters
from ..checkpoint.plan import SOURCE_DTYPES, with_prefix
from ..errors import CheckpointError, ConfigError, InputError, MismatchedShapesError, UnsupportedError
from ..optable import BINARY, LAYOUTS, PANEL
from ..program import Recorded, recorder, run_once
from ..runtime import resolve

if TYPE_CHECKING:
    from ..executors.base import Executor
    from ..hub import Repository

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
TENSOR_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
# The model's own weight, of which PEFT puts a copy beside the adapter of a layer of the vocabulary.
COPY_NAME = "base_model.model.{}.base_layer.weight"
# Initial values for which PEFT changes the weights of the model as well.
BASE_CHANGING_INIT = ("pissa", "olora", "corda", "loftq")
# Variants of LoRA, by their keys in adapter_config.json; all are off when absent, false or empty.
VARIANTS = (
    "use_dora", "modules_to_save", "lora_bias", "use_qalora", "layer_replication", "target_parameters",
    "trainable_token_indices", "alora_invocation_tokens", "arrow_config", "megatron_config", "use_bdlora",
)  # fmt: skip


class LowRank(NamedTuple):
    """What an adapter adds to the weight of `module`, which is the parameter `name`: B A, the scale in B."""

    name: str
    module: nn.Linear
    a: nn.Parameter
    b: nn.Parameter


class AdapterMixin:
    """The adapters of a model, with the method names of transformers and PEFT."""

    weight_conversions: ClassVar[tuple[Any, ...]]
    base_model_prefix: ClassVar[str]
    named_parameters: Callable[[], Iterable[tuple[str, nn.Parameter]]]
    _programs: list[Recorded]

    if TYPE_CHECKING:

        @property
        def executor(self) -> Executor: ...

    def __init__(self) -> None:
        self._adapters: dict[str, list[LowRank]] = {}
        self._active: list[str] = []
        self._merged: list[str] = []
        self._adapters_enabled = True
        self.adapter_changes = 0  # what was computed before the last of them is of other weights

    def load_adapter(self, name: "str | Repository", adapter_name: str = "default", **options: Any) -> None:
        """Load a LoRA adapter from a repository and make it the active one.

        `name` is a hub id, a local folder or the URL of a folder with `adapter_config.json` and
        `adapter_model.safetensors`; `options` are revision, subfolder, token, local_files_only and progress_callback,
        as in `from_pretrained`. Raises InputError for an `adapter_name` that is in use, UnsupportedError for other
        methods and variants than LoRA on linear layers, CheckpointError for tensors of layers that the model does not
        have, MismatchedShapesError, OutOfMemoryError, and what the repository raises. Nothing changes if it fails.
        """
        return resolve(self._load_adapter(name, adapter_name, **options))

    async def _load_adapter(
        self,
        name: "str | Repository",
        adapter_name: str,
        *,
        revision: str = "main",
        subfolder: str = "",
        token: str | None = None,
        local_files_only: bool = False,
        progress_callback: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        from .modeling import as_repository

        self._check_new(adapter_name)
        executor = self.executor
        repository = as_repository(name, revision, subfolder, token, local_files_only, progress_callback)
        await repository.expect(CONFIG_FILE, WEIGHTS_FILE)
        config = await repository.json(CONFIG_FILE)
        if not isinstance(config, dict):
            raise ConfigError(f"{CONFIG_FILE} of {repository.name} is not a JSON object.", hint="Check the repository.")
        _check_config(config, repository.name)
        file = await read_file(repository, WEIGHTS_FILE)
        layers, tensors = self._plan(config, file)
        await load_parameters(executor, repository, file, tensors)
        try:
            self._check_new(adapter_name)  # loading may have been suspended
            _ = self.executor
            _scale(layers, config, executor)
        except BaseException:
            _free(layers.values())
            raise
        self._adapters[adapter_name] = list(layers.values())
        self._active = [adapter_name]
        self._apply()

    def active_adapters(self) -> list[str]:
        """Names of the active adapters; they have no effect while adapters are disabled."""
        return list(self._active)

    def set_adapter(self, adapter_name: str | list[str]) -> None:
        """Make an adapter the active one, or several, whose effects then add up."""
        names = self._known(adapter_name)
        self._check_unmerged()
        self._active = names
        self._apply()

    def disable_adapters(self) -> None:
        """Compute as without adapters, until `enable_adapters()`."""
        self._check_unmerged()
        self._adapters_enabled = False
        self._apply()

    def enable_adapters(self) -> None:
        """Compute with the active adapters again."""
        self._adapters_enabled = True
        self._apply()

    def delete_adapter(self, adapter_names: str | list[str]) -> None:
        """Free adapters. Those that were active are no more, and none takes their place."""
        names = self._known(adapter_names)
        self._check_unmerged()
        self._active = [name for name in self._active if name not in names]
        self._apply()
        for name in names:
            _free(self._adapters.pop(name))

    def merge_adapter(self, adapter_names: str | list[str] | None = None) -> None:
        """Add the active adapters, or those named, to the weights, so that they cost no time.

        Until `unmerge_adapter()` no other can be set. Raises UnsupportedError, and changes nothing, unless the weights
        are float32 and used by one layer each.
        """
        names = self._active if adapter_names is None else self._known(adapter_names)
        self._check_unmerged()
        layers = [layer for name in names for layer in self._adapters[name]]
        self._check_mergeable(layers)
        done: list[LowRank] = []
        try:
            for layer in layers:
                _add_to_weight(layer, "add", self.executor)
                done.append(layer)
        except BaseException:
            for layer in done:
                _add_to_weight(layer, "subtract", self.executor)
            raise
        self._merged = list(names)
        self._apply()

    def unmerge_adapter(self) -> None:
        """Take merged adapters out of the weights again, which are then as before but for rounding."""
        for layer in [layer for name in self._merged for layer in self._adapters[name]]:
            _add_to_weight(layer, "subtract", self.executor)
        self._merged = []
        self._apply()

    def _apply(self) -> None:
        """Let the layers compute with what is active now. Programs are recorded anew."""
        for layers in self._adapters.values():
            for layer in layers:
                layer.module.low_rank = ()
        if self._adapters_enabled and not self._merged:
            for layer in [layer for name in self._active for layer in self._adapters[name]]:
                layer.module.low_rank = (*layer.module.low_rank, (layer.a, layer.b))
        for recorded in self._programs:
            recorded.dispose()
        self.adapter_changes += 1

    def _free_adapters(self) -> None:
        for layers in self._adapters.values():
            _free(layers)
        self._adapters, self._active, self._merged = {}, [], []

    def _plan(
        self, config: Mapping[str, Any], file: CheckpointFile
    ) -> tuple[dict[str, LowRank], dict[str, nn.Parameter]]:
        """The adapted layers by their paths in the file, and the parameters, unplaced, by tensor.

        The file is checked as a whole, against the configuration and the model.
        """
        pairs = _pairs(file)
        shapes = {name: parameter.shape for name, parameter in self.named_parameters()}
        modules = dict(owners(self))  # pyright: ignore[reportArgumentType]
        renamings = [each for each in self.weight_conversions if isinstance(each, WeightRenaming)]
        layers: dict[str, LowRank] = {}
        tensors: dict[str, nn.Parameter] = {}
        unknown: list[str] = []
        mismatched: list[str] = []
        for path, (a_name, b_name) in pairs.items():
            weight = reduce(lambda name, renaming: renaming.rename(name), renamings, f"{path}.weight")
            weight = with_prefix(weight, self.base_model_prefix, shapes)
            module = modules.get(weight)
            if not isinstance(module, nn.Linear):
                unknown.append(path)
                continue
            rank = _by_pattern(config, "rank_pattern", path, config["r"])
            outer, inner = module.weight.shape
            expected = {a_name: (rank, inner), b_name: (outer, rank)}
            tensors |= {tensor: nn.Parameter(shape, layout="panels") for tensor, shape in expected.items()}
            if (name := COPY_NAME.format(path)) in file.tensors:
                expected[name] = module.weight.shape
            for tensor, wanted in expected.items():
                if (found := file.tensors[tensor].shape) != wanted:
                    mismatched.append(f"{tensor}: {list(found)}, expected {list(wanted)}")
            layers[path] = LowRank(weight, module, tensors[a_name], tensors[b_name])
        if unknown:
            raise CheckpointError(
                f"The adapter is for layers that {type(self).__name__} does not have: {_listed(unknown)}.",
                hint="It belongs to another model, or to one with another head.",
            )
        if mismatched:
            raise MismatchedShapesError(
                f"Tensors of the adapter do not fit {type(self).__name__}: {'; '.join(mismatched[:10])}.",
                hint="It belongs to a model of another size, or its configuration has another rank.",
            )
        _check_targets(config, layers)
        return layers, tensors

    def _check_new(self, adapter_name: str) -> None:
        self._check_unmerged()
        if adapter_name in self._adapters:
            raise InputError(
                f"There is an adapter {adapter_name!r} already.", hint="Give another adapter_name, or delete it first."
            )

    def _check_unmerged(self) -> None:
        if self._merged:
            raise InputError(
                f"Adapters are merged into the weights: {_listed(self._merged)}.", hint="Call unmerge_adapter() first."
            )

    def _check_mergeable(self, layers: list[LowRank]) -> None:
        if fixed := {layer.name: layer.module.weight.layout for layer in layers
                     if layer.module.weight.layout != "panels"}:  # fmt: skip
            raise UnsupportedError(
                f"Adapters are merged into float32 weights only; {_listed(fixed)} have layout "
                f"{', '.join(sorted(set(fixed.values())))}.",
                hint="Leave the adapter active without merging it, or load the model with dtype='fp32'.",
            )
        uses: dict[int, list[str]] = {}
        for name, parameter in self.named_parameters():
            uses.setdefault(id(parameter), []).append(name)
        if tied := [layer.name for layer in layers if len(uses[id(layer.module.weight)]) > 1]:
            raise UnsupportedError(
                f"Weights that are tied to others would change these, too: {_listed(tied)}.",
                hint="Leave the adapter active without merging it.",
            )

    def _known(self, names: str | list[str]) -> list[str]:
        """The names as a list, each once."""
        wanted = list(dict.fromkeys([names] if isinstance(names, str) else names))
        if unknown := [name for name in wanted if name not in self._adapters]:
            raise InputError(
                f"No adapter is called {_listed(unknown)}.", hint=f"Loaded are: {_listed(self._adapters) or 'none'}."
            )
        return wanted


def _check_config(config: Mapping[str, Any], name: str) -> None:
    """Raise unless the configuration is one of plain LoRA."""
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UnsupportedError(f"The adapter {name} is of peft_type {kind!r}.", hint="Only 'LORA' is supported.")
    if used := [key for key in VARIANTS if config.get(key)]:
        raise UnsupportedError(f"The adapter {name} uses {_listed(used)}.", hint="Only plain LoRA is supported.")
    if config.get("bias", "none") != "none":
        raise UnsupportedError(f"The adapter {name} has bias {config['bias']!r}.", hint="Only 'none' is supported.")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(BASE_CHANGING_INIT):
        raise UnsupportedError(
            f"The adapter {name} was initialised by {start!r}, which changes the model's weights, too.",
            hint="Let PEFT convert it to plain LoRA when it is saved (path_initial_model_for_weight_conversion).",
        )
    ranks, alphas = config.get("rank_pattern") or {}, config.get("alpha_pattern") or {}
    if not isinstance(ranks, dict) or not isinstance(alphas, dict):
        raise ConfigError(f"rank_pattern or alpha_pattern of the adapter {name} is no object.", hint="Check the file.")
    for pattern in (*ranks, *alphas):
        try:
            re.compile(_at_the_end(pattern))
        except re.error as error:
            raise ConfigError(f"The adapter {name} has a malformed pattern {pattern!r}: {error}.") from None
    if any(type(rank) is not int or rank < 1 for rank in (config.get("r"), *ranks.values())):
        raise ConfigError(f"The adapter {name} must have positive integers as ranks (r, rank_pattern).")
    if any(not isinstance(alpha, int | float) for alpha in (config.get("lora_alpha"), *alphas.values())):
        raise ConfigError(f"The adapter {name} must have numbers as lora_alpha and in alpha_pattern.")


def _pairs(file: CheckpointFile) -> dict[str, tuple[str, str]]:
    """Names of the tensors A and B by the path of their layer."""
    found: dict[str, dict[str, str]] = {}
    others: list[str] = []
    for name, info in file.tensors.items():
        match = TENSOR_NAME.fullmatch(name)
        if match is None or info.dtype not in SOURCE_DTYPES:
            others.append(name)
        else:
            found.setdefault(match[1], {})[match[2]] = name
    copies = {COPY_NAME.format(path) for path in found}
    foreign = [f"{name} ({file.tensors[name].dtype})" for name in others if name not in copies]
    if foreign:
        raise UnsupportedError(
            f"{file.name} has tensors that are not LoRA of linear layers in floats: {_listed(foreign)}.",
            hint="Names are base_model.model.<layer>.lora_A.weight and lora_B; embeddings cannot be adapted.",
        )
    if single := [path for path, pair in found.items() if len(pair) < 2]:
        raise CheckpointError(f"{file.name} has only one of lora_A and lora_B for {_listed(single)}.")
    if not found:
        raise CheckpointError(f"{file.name} has no tensors.", hint="Check the repository.")
    return {path: (pair["A"], pair["B"]) for path, pair in found.items()}


def _check_targets(config: Mapping[str, Any], paths: Iterable[str]) -> None:
    """Raise if `target_modules` are given as names and there is none with weights in the file."""
    targets = config.get("target_modules")
    if isinstance(targets, list) and (
        lacking := [each for each in targets if not any(f".{path}".endswith(f".{each}") for path in paths)]
    ):
        raise CheckpointError(
            f"target_modules of the adapter name layers for which it has no weights: {_listed(lacking)}.",
            hint="The two files of the adapter do not belong together.",
        )


def _by_pattern(config: Mapping[str, Any], key: str, path: str, default: Any) -> Any:
    """Value of the first pattern that fits the end of a layer's path, as PEFT matches them."""
    patterns: Mapping[str, Any] = config.get(key) or {}
    return next((value for each, value in patterns.items() if re.match(_at_the_end(each), path)), default)


def _at_the_end(pattern: str) -> str:
    """The pattern, for the end of a layer's path."""
    return rf"(.*\.)?({pattern})$"


def _scale(layers: Mapping[str, LowRank], config: Mapping[str, Any], executor: "Executor") -> None:
    """Multiply every B by the scale of its layer."""

    def multiply() -> None:
        for path, layer in layers.items():
            rank, alpha = layer.a.shape[0], _by_pattern(config, "alpha_pattern", path, config["lora_alpha"])
            scale = ops.constant([alpha / (sqrt(rank) if config.get("use_rslora") else rank)] * PANEL, "float32")
            _emit_in_place("multiply", layer.b, scale)

    run_once(multiply, executor)


def _add_to_weight(layer: LowRank, operation: str, executor: "Executor") -> None:
    """weight += B A, or with "subtract" the opposite."""
    weight = layer.module.weight

    def add() -> None:
        product = ops.matmul(_unpacked(layer.b), _unpacked(layer.a))
        rows, inner = weight.shape
        packed = recorder().scratch((weight.nbytes // 4,))
        ops.emit("pack", y=packed, x=product, rows=rows, inner=inner, source=0, row_stride=inner, column_stride=1)
        _emit_in_place(operation, weight, packed)

    run_once(add, executor)


def _unpacked(parameter: nn.Parameter) -> Any:
    plain = recorder().scratch(parameter.shape)
    rows, inner = parameter.shape
    ops.emit("unpack", y=plain, x=parameter, rows=rows, inner=inner, layout=LAYOUTS.index(parameter.layout))
    return plain


def _emit_in_place(operation: str, parameter: nn.Parameter, other: Any) -> None:
    """Record parameter = parameter (operation) other, on all elements of the panels."""
    count, number = parameter.nbytes // 4, BINARY.index(operation)
    ops.emit("binary", y=parameter, a=parameter, b=other, count=count, b_count=other.size, operation=number)


def _free(layers: Iterable[LowRank]) -> None:
    for layer in layers:
        layer.a.free()
        layer.b.free()


def _listed(names: Iterable[str]) -> str:
    """At most ten names."""
    names = list(names)
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
