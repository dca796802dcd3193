"""Modules: trees of parameters, built as a skeleton of shapes; the checkpoint loader places the parameters."""

from collections.abc import Iterable, Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from . import ops
from .errors import DisposedError
from .optable import LAYOUTS, weight_nbytes
from .program import run_once
from .tensor import Tensor, from_bytes

if TYPE_CHECKING:
    from .executors.base import Executor


class HeapBlock:
    """A parameter's place in kernel memory."""

    __slots__ = ("address", "executor", "nbytes")

    def __init__(self, executor: "Executor", nbytes: int) -> None:
        self.executor = executor
        self.nbytes = nbytes
        self.address = executor.allocate(nbytes)

    def free(self) -> None:
        if self.address:
            self.executor.free(self.address)
            self.address = 0


def layout_nbytes(layout: str, shape: tuple[int, ...]) -> int:
    """Bytes in kernel memory of a parameter, which has two dimensions unless its layout is rows."""
    return 4 * prod(shape) if layout == "rows" else weight_nbytes(layout, *shape)


class Parameter(Tensor):
    """Weights of a module: a logical shape, as in the checkpoint, and a layout in kernel memory.

    `layout` is "rows" (row-major) or one of those packed for `ops.linear` (`optable.py`), quantised ones among them.
    A tied weight is one `Parameter` in two modules; it is packed if either use needs that.
    """

    __slots__ = ("layout",)

    def __init__(self, shape: tuple[int, ...], layout: str = "rows") -> None:
        super().__init__(shape, "float32", None)
        self.layout = layout

    @property
    def address(self) -> int:
        """Address in kernel memory, 0 while not placed."""
        return self.storage.address if self.storage is not None else 0

    @property
    def nbytes(self) -> int:
        """Bytes in kernel memory, the padding of panels included."""
        return layout_nbytes(self.layout, self.shape)

    def place(self, executor: "Executor") -> None:
        """Allocate the parameter's place, its contents undefined. Raises OutOfMemoryError."""
        self.storage = HeapBlock(executor, self.nbytes)

    def free(self) -> None:
        """Give the place back."""
        if self.storage is not None:
            self.storage.free()
            self.storage = None

    @property
    def data(self) -> memoryview:
        """Copy of the values, row-major, read from kernel memory."""
        if self.storage is None:
            raise DisposedError("The parameter has no values.", hint="Its model was disposed of or not loaded yet.")
        executor, address = self.storage.executor, self.address
        if self.layout == "rows":
            return from_bytes(self.shape, "float32", executor.read(address, self.nbytes)).data
        (rows, inner), layout = self.shape, LAYOUTS.index(self.layout)
        plain = HeapBlock(executor, 4 * rows * inner)
        target = Tensor(self.shape, "float32", plain)
        try:
            run_once(lambda: ops.emit("unpack", y=target, x=self, rows=rows, inner=inner, layout=layout), executor)
            return from_bytes(self.shape, "float32", executor.read(plain.address, plain.nbytes)).data
        finally:
            plain.free()

    def __repr__(self) -> str:
        return f"Parameter(shape={list(self.shape)}, layout={self.layout})"


class Module:
    """Base of layers and models; attributes that are parameters or modules make the tree, in order of definition."""

    def named_children(self) -> Iterator[tuple[str, "Module"]]:
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Dotted names with parameters; a tied parameter appears under each of its names."""
        found: list[tuple[str, Parameter]] = []
        self._collect(prefix, found)
        return iter(found)

    def _collect(self, prefix: str, found: list[tuple[str, Parameter]]) -> None:
        for name, value in vars(self).items():
            if isinstance(value, Parameter):
                found.append((prefix + name, value))
            elif isinstance(value, Module):
                value._collect(f"{prefix}{name}.", found)

    def parameters(self) -> list[Parameter]:
        """Each parameter once."""
        return list({id(parameter): parameter for _, parameter in self.named_parameters()}.values())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define forward()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)


class ModuleList(Module):
    """Modules by number."""

    def __init__(self, modules: Iterable[Module]) -> None:
        for i, module in enumerate(modules):
            setattr(self, str(i), module)

    def __len__(self) -> int:
        return len(vars(self))

    def __iter__(self) -> Iterator[Any]:
        return iter(vars(self).values())

    def __getitem__(self, index: int) -> Any:
        return list(self)[index]


class Linear(Module):
    """y = x W^T + b, with an activation and a residual fused when given.

    `low_rank` are pairs of parameters A [r, in] and B [out, r], whose products B A an adapter adds to W.
    """

    low_rank: tuple[tuple[Parameter, Parameter], ...] = ()

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self.weight = Parameter((out_features, in_features), layout="panels")
        self.bias = Parameter((out_features,)) if bias else None

    def forward(self, x: Tensor, activation: str = "none", residual: Tensor | None = None) -> Tensor:
        if not self.low_rank:
            return ops.linear(x, self.weight, self.bias, activation, residual)
        y = ops.linear(x, self.weight, self.bias, residual=residual if activation == "none" else None)
        for a, b in self.low_rank:
            y = ops.linear(ops.linear(x, a), b, residual=y)
        if activation == "none":
            return y
        y = ops.activation(y, activation)
        return y if residual is None else ops.add(y, residual)


class Embedding(Module):
    """Rows of a table by id, plus a residual when given."""

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        self.weight = Parameter((num_embeddings, embedding_dim))

    def forward(self, ids: Tensor, residual: Tensor | None = None) -> Tensor:
        return ops.embedding(ids, self.weight, residual)


class LayerNorm(Module):
    """Layer normalisation over the last dimension, of x + residual when given."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        self.weight = Parameter((dim,))
        self.bias = Parameter((dim,))
        self.eps = eps

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, self.eps, residual)


class RMSNorm(Module):
    """x over its root mean square along the last dimension, times weight + offset."""

    def __init__(self, dim: int, eps: float = 1e-6, offset: float = 0.0) -> None:
        self.weight = Parameter((dim,))
        self.eps = eps
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps, self.offset)
