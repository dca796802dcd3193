"""What all models have in common: loading, calling, disposing."""

from collections.abc import Callable, Coroutine, Generator, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self

from .. import nn
from ..checks import check_flags
from ..errors import ConfigError, DisposedError, InpageError, InputError, OutdatedError, UnsupportedError
from ..executors import acquire, release
from ..executors.base import Interrupted
from ..program import Program, Recorded
from ..program import jit as record_on_first_call
from ..runtime import Awaitable, resolve, result_of
from ..tensor import Tensor
from .adapters import AdapterMixin
from .attention import attention_function
from .configuration import PreTrainedConfig, read_config, remote_code_error
from .outputs import ModelOutput

if TYPE_CHECKING:
    from ..checkpoint import WeightConversion
    from ..executors.base import Executor
    from ..hub import Repository

ModelClass = Callable[[dict[str, Any], str], "type[PreTrainedModel]"]
DEFAULT_DEVICE = "wasm"


class PreTrainedModel(AdapterMixin, nn.Module, Awaitable):
    """Base of all models.

    A model built from a configuration alone is a skeleton of shapes; `from_pretrained` gives it weights. Calling it
    records `forward` for the signature of the inputs at hand, or replays what was recorded for it.
    """

    config_class: ClassVar[type[PreTrainedConfig]] = PreTrainedConfig
    base_model_prefix: ClassVar[str] = ""
    input_names: ClassVar[tuple[str, ...]] = ()
    label_names: ClassVar[tuple[str, ...]] = ()
    option_names: ClassVar[tuple[str, ...]] = ()  # keywords of `forward` that are no tensors
    tied_weights_keys: ClassVar[dict[str, str]] = {}
    keys_to_ignore_on_load_missing: ClassVar[tuple[str, ...]] = ()
    # Once a buffer in checkpoints, now computed.
    keys_to_ignore_on_load_unexpected: ClassVar[tuple[str, ...]] = (r"(^|\.)position_ids$",)
    weight_conversions: ClassVar[tuple["WeightConversion", ...]] = ()

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.config = config
        self._executor: Executor | None = None
        self._programs: list[Recorded] = []
        self._run: Callable[..., ModelOutput] | None = None
        self._disposed = False

    @classmethod
    def from_pretrained(cls, name: "str | Repository", **options: Any) -> Self:
        """Model of a repository: a hub id, a local folder or the URL of a folder. `options` are those of `load`."""
        return resolve(up_to_date(lambda: load(lambda values, repository: cls, name, **options)))

    @property
    def base_model(self) -> "PreTrainedModel":
        """The model without its head."""
        return getattr(self, self.base_model_prefix, self)

    @property
    def max_positions(self) -> int | None:
        """Most tokens of a sequence that the model has positions for; None where it sets no limit."""
        return None if self.base_model is self else self.base_model.max_positions

    @property
    def executor(self) -> "Executor":
        """The executor whose memory holds the weights. Raises DisposedError."""
        if self._executor is None:
            what = "was disposed of" if self._disposed else "has no weights"
            raise DisposedError(f"This {type(self).__name__} {what}.", hint="Load it with from_pretrained().")
        return self._executor

    @property
    def device(self) -> str:
        """Name of the executor: "wasm" or "reference"."""
        return self.executor.name

    def num_parameters(self) -> int:
        """Number of weights, tied ones once."""
        return sum(parameter.size for parameter in self.parameters())

    def get_memory_footprint(self) -> int:
        """Bytes of the weights in kernel memory."""
        return sum(parameter.nbytes for parameter in self.parameters())

    def __call__(
        self,
        inputs: Any = None,
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        **named: Any,
    ) -> Any:
        """Outputs for a batch, as a `ModelOutput` of host tensors (a tuple with return_dict=False).

        Inputs go by name as nested lists, arrays or tensors; a mapping such as a `BatchEncoding`, or the input ids
        alone, may come first. Token inputs are int32 [B, L], `inputs_embeds` float32 [B, L, N]. Labels add the loss.
        Raises InputError for inputs that this model does not take.
        """
        check_flags(
            optional=True,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            return_dict=return_dict,
        )
        if inputs is not None:
            named = {**(inputs if isinstance(inputs, Mapping) else {"input_ids": inputs}), **named}
        config = self.config
        if self._run is None:
            self._run = self.jit(self.forward)
        options = {name: named.pop(name) for name in self.option_names if name in named}
        outputs = self._run(
            **self.prepare_inputs(named, **options),
            **options,
            output_hidden_states=config.output_hidden_states if output_hidden_states is None else output_hidden_states,
            output_attentions=config.output_attentions if output_attentions is None else output_attentions,
        )
        return outputs if (config.return_dict if return_dict is None else return_dict) else outputs.to_tuple()

    def jit(self, function: Callable[..., Any]) -> "ModelFunction":
        """`program.jit` on this model's executor, for functions that call `forward`. Freed with the model."""
        return ModelFunction(self, function)

    async def read_settings(self, repository: "Repository") -> None:
        """Read what else a family needs of the repository; called before the weights are loaded."""

    @classmethod
    def config_values(cls, values: dict[str, Any], name: str) -> dict[str, Any]:
        """The part of the `config.json` of repository `name` that is about this class."""
        return values

    def replay(self, recorded: Recorded, arguments: dict[str, Any]) -> Generator[None, None, Any]:
        """Run a recorded function over this model, in steps; here a family adds what only it knows."""
        return recorded.steps(**arguments)

    def prepare_inputs(self, named: Mapping[str, Any], **options: Any) -> dict[str, Tensor]:
        """Host tensors of the inputs that are not None, in the order in which the model declares them.

        Raises InputError for unknown names, wrong shapes, and both or none of `input_ids` and `inputs_embeds`.
        """
        names = (*self.input_names, *self.label_names)
        given = {name: value for name, value in named.items() if value is not None}
        if unknown := [name for name in given if name not in names]:
            raise InputError(
                f"{type(self).__name__} takes no {', '.join(map(repr, unknown))}.", hint=f"It takes {', '.join(names)}."
            )
        if ("input_ids" in given) == ("inputs_embeds" in given):
            raise InputError(f"{type(self).__name__} needs either input_ids or inputs_embeds.")
        inputs = {name: self._prepare_input(name, given[name]) for name in names if name in given}
        batch = _batch_shape(inputs)
        for name in inputs.keys() & {"attention_mask", "token_type_ids", "position_ids"}:
            inputs[name] = _expanded(name, inputs[name], batch)
        self.prepare_labels(inputs)
        return inputs

    def prepare_labels(self, inputs: dict[str, Tensor]) -> None:
        """Bring the labels among `inputs` into the form that the loss takes."""

    def dispose(self) -> None:
        """Free the weights and programs. The model is of no use afterwards."""
        for recorded in self._programs:
            recorded.dispose()
        self._programs.clear()
        self._run = None
        self._free_adapters()
        for parameter in self.parameters():
            parameter.free()
        if self._executor is not None:
            executor, self._executor = self._executor, None
            release(executor)
        self._disposed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.dispose()

    def __del__(self) -> None:
        """A model that is dropped without `dispose` gives its memory back, too, but later."""
        if getattr(self, "_executor", None) is not None:
            self.dispose()

    def _prepare_input(self, name: str, value: Any) -> Tensor:
        if name in self.label_names:
            return Tensor.from_values(value)
        return Tensor.from_values(value, "float32" if name == "inputs_embeds" else "int32")


class ModelFunction:
    """A recorded function over a model's weights; what `PreTrainedModel.jit` returns."""

    def __init__(self, model: PreTrainedModel, function: Callable[..., Any]) -> None:
        self._model = model
        self._recorded = record_on_first_call(function, model.executor)
        model._programs.append(self._recorded)

    def __call__(self, **arguments: Any) -> Any:
        """As `program.Recorded`. Raises DisposedError once the model is gone."""
        _ = self._model.executor
        return result_of(self._model.replay(self._recorded, {**arguments, "at_once": True}))

    def steps(self, **arguments: Any) -> Generator[None, None, Any]:
        """A call with pauses, in which anything may happen: where others took what it needs, it starts over without."""
        _ = self._model.executor
        try:
            return (yield from self._model.replay(self._recorded, dict(arguments)))
        except Interrupted:
            _ = self._model.executor
            return result_of(self._model.replay(self._recorded, arguments))

    @property
    def last(self) -> Program | None:
        """The program that the last call has run."""
        return self._recorded.last

    def dispose(self) -> None:
        """Free the programs."""
        self._recorded.dispose()
        if self._recorded in self._model._programs:
            self._model._programs.remove(self._recorded)


class LoadedWithInfo(tuple[PreTrainedModel, dict[str, Any]], Awaitable):
    """What `output_loading_info=True` gives: the model and the report."""


async def up_to_date(loading: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """What `loading` gives, once more where the repository turns out to have changed since it was stored."""
    try:
        return await loading()
    except OutdatedError:
        return await loading()


async def load(
    choose: ModelClass,
    name: "str | Repository",
    *,
    config: PreTrainedConfig | None = None,
    revision: str = "main",
    subfolder: str = "",
    token: str | None = None,
    local_files_only: bool = False,
    progress_callback: Callable[[dict[str, Any]], None] | None = None,
    dtype: str | dict[str, str] | None = None,
    device: str | None = None,
    attn_implementation: str = "sdpa",
    output_loading_info: bool = False,
    ignore_mismatched_sizes: bool = False,
    trust_remote_code: bool = False,
    **overrides: Any,
) -> Any:
    """Model of the class that `choose` finds for the contents of `config.json`, with the weights of the repository.

    `revision`, `subfolder`, `token`, `local_files_only`, `progress_callback` say where from, as for `Repository`.
    `dtype` is the precision of the weights in memory (fp32, fp16, q8, q8g, q4, q4z), or a dict of them by patterns of
    parameter names; `device` is "wasm" or "reference"; `attn_implementation`
    "sdpa" is the fused attention, "eager" the one with maps. `ignore_mismatched_sizes` initialises parameters that
    have another shape in the checkpoint. `output_loading_info` returns (model, report). Other keywords replace keys of
    the configuration. `trust_remote_code` is refused.
    """
    from ..checkpoint import WEIGHTS_FILE, check_dtype, load_weights

    repository = as_repository(name, revision, subfolder, token, local_files_only, progress_callback)
    if not isinstance(config, PreTrainedConfig | None):
        raise InputError(f"config= takes a configuration, not {config!r:.60}.", hint="Load one with AutoConfig.")
    if trust_remote_code:
        raise remote_code_error("trust_remote_code=True asks for it")
    check_dtype(dtype)
    attention_function(attn_implementation)
    await repository.expect(*(["config.json"] if config is None else []), WEIGHTS_FILE)
    values = await read_config(repository) if config is None else config.to_dict()
    model_class = choose(values, repository.name)
    values = model_class.config_values(values, repository.name)
    if config is None:
        _check_model_type(model_class, values, repository.name)
        config = model_class.config_class.from_dict(values, **overrides)
    elif overrides:
        raise InputError("Keys of the configuration cannot be given together with config=.", hint="Set them there.")
    else:
        config = copy(config)
    config.attn_implementation = attn_implementation
    config.name_or_path = repository.name
    model = _built(model_class, config)
    model._executor = acquire(device or DEFAULT_DEVICE)
    try:
        await model.read_settings(repository)
        info = await load_weights(model, repository, dtype=dtype, ignore_mismatched_sizes=ignore_mismatched_sizes)
    except BaseException:
        model.dispose()
        raise
    return LoadedWithInfo((model, info.to_dict())) if output_loading_info else model


def _built(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    """The skeleton of a model. Raises ConfigError for values of which none can be built."""
    try:
        return model_class(config)
    except InpageError:
        raise
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise ConfigError(
            f"config.json of {config.name_or_path} is no {model_class.__name__}'s: {error}.",
            hint="Check its values, and the overrides given to from_pretrained.",
        ) from error


def as_repository(name: "str | Repository", *options: Any) -> "Repository":
    """`name` itself if it is a repository, else the repository with these options, in the order of `load`."""
    from ..hub import Repository

    if isinstance(name, Repository):
        if options != ("main", "", None, False, None):
            raise InputError(
                "Options of a repository cannot be given together with a Repository.", hint="Set them there."
            )
        return name
    revision, subfolder, token, local_files_only, progress_callback = options
    return Repository(
        name,
        revision=revision,
        subfolder=subfolder,
        token=token,
        local_files_only=local_files_only,
        progress_callback=progress_callback,
    )


def _batch_shape(inputs: Mapping[str, Tensor]) -> tuple[int, int]:
    name = "input_ids" if "input_ids" in inputs else "inputs_embeds"
    shape = inputs[name].shape
    dims = 2 if name == "input_ids" else 3
    if len(shape) != dims or 0 in shape:
        raise InputError(
            f"{name} must have {dims} dimensions, none empty, found shape {list(shape)}.",
            hint="A single sequence is a batch of one: [[...]].",
        )
    return shape[0], shape[1]


def _expanded(name: str, tensor: Tensor, batch: tuple[int, int]) -> Tensor:
    """`tensor` with a first dimension of 1 repeated over the batch."""
    if tensor.shape == (1, batch[1]) != batch:
        return Tensor.from_values(tensor.tolist() * batch[0], tensor.dtype)
    if tensor.shape != batch:
        raise InputError(f"{name} must have shape {list(batch)}, found {list(tensor.shape)}.")
    return tensor


def _check_model_type(model_class: type[PreTrainedModel], values: Mapping[str, Any], name: str) -> None:
    wanted, found = model_class.config_class.model_type, values.get("model_type")
    if found is not None and found != wanted and model_class.__name__ not in (values.get("architectures") or ()):
        raise UnsupportedError(
            f"{name} holds a {found!r} model; {model_class.__name__} loads {wanted!r} models.",
            hint="Use an AutoModel class, which chooses by the repository.",
        )
