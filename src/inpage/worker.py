"""The worker's side of the page's protocol: JSON-RPC-2.0-shaped messages over whatever carries them.

Requests `{jsonrpc, id, method, params}` run one at a time, in order of arrival, and each is answered by `{jsonrpc, id,
result}` or `{jsonrpc, id, error}`. The methods and their params are those of `Server._methods`. Notifications: the
page sends `abort {id}`, which ends a request that waits, loads or runs (between two batches); the worker sends
`progress {id, event}` while a request that asked for it (`progress: true`) is at work, as JSON text.

Values cross as themselves, but for two: a tensor is `{$type: "tensor", dtype, dims, data}` with a typed array as data,
and an object that has no value form stays in the worker's table as `{$type: "handle", handle, class, callable,
methods, attributes}`. Handles are arguments too. Names are looked up in `inpage.__all__` only, and nothing that starts
with an underscore is reachable.
"""

import asyncio
import inspect
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from itertools import count
from json import dumps
from time import perf_counter
from typing import Any, cast

from .errors import AbortError, ConfigError, DisposedError, InpageError, InputError
from .tensor import Tensor

PROTOCOL = 1
PAUSE = 0.05  # seconds of work between two looks for messages: they cost much of what a token does
_MISSING = object()

Message = dict[str, Any]
Report = Callable[[Message], None]


class Server:
    """Answers the messages of one page. `post` sends a message; bytes-like values in it are left to the transport.

    `namespace` is the module whose `__all__` is served and `null` the value that the transport has for JS's null.
    """

    def __init__(self, post: Callable[[Message], None], namespace: Any = None, null: Any = None) -> None:
        if namespace is None:
            import inpage as namespace
        self._post = post
        self._namespace = namespace
        self._null = null
        self._objects: dict[int, Any] = {}
        self._handles = count(1)
        self._requests: dict[Any, asyncio.Task[None] | None] = {}
        self._turn = asyncio.Lock()
        self._running: Any = None
        self._methods = {
            "hello": self._hello,
            "create": self._create,
            "call": self._call,
            "get": self._get,
            "dispose": self._dispose,
        }

    async def handle(self, message: Message) -> None:
        """Answer one message. Runs as a task of its own, so that others can arrive meanwhile."""
        identifier, method, params = message.get("id"), message.get("method"), message.get("params") or {}
        if method == "abort":
            self._abort(params)
        elif identifier is None or identifier in self._requests:
            error = InputError(f"A request needs an id that no request in progress has, not {identifier!r}.")
            self._answer(identifier, error=_describe_error(error))
        else:
            self._requests[identifier] = asyncio.current_task()
            try:
                async with self._turn:
                    self._running = identifier
                    result = await self._run(message.get("jsonrpc"), method, params)
                self._answer(identifier, result=result)
            except (Exception, asyncio.CancelledError) as error:
                self._answer(identifier, error=_describe_error(error))
            finally:
                del self._requests[identifier]

    def _abort(self, params: Message) -> None:
        task = self._requests.get(params.get("id"))
        if task is not None:
            task.cancel()

    def _answer(self, identifier: Any, **outcome: Any) -> None:
        self._post({"jsonrpc": "2.0", "id": identifier, **outcome})

    def _report(self, identifier: Any, event: Message) -> None:
        params = {"id": identifier, "event": event}
        self._post({"jsonrpc": "2.0", "method": "progress", "params": params})

    async def _run(self, version: Any, method: Any, params: Any) -> Any:
        if version != "2.0" or method not in self._methods or not isinstance(params, dict):
            raise InputError(
                f"Not a request of this protocol: jsonrpc {version!r}, method {method!r}.",
                hint=f"The methods are {', '.join(self._methods)}, their params an object.",
            )
        result = _apply(self._methods[method], [], params, method)
        return await result if inspect.isawaitable(result) else result

    # The methods. Their parameters are the params of a request.

    def _hello(self, *, protocol: int) -> Message:
        """Agree on the protocol's version."""
        if protocol != PROTOCOL:
            raise ConfigError(
                f"The page speaks version {protocol} of the protocol and the worker version {PROTOCOL}.",
                hint="Serve inpage.js, inpage-worker.js and the inpage wheel of one release.",
            )
        names = list(self._namespace.__all__)
        return {"protocol": PROTOCOL, "version": getattr(self._namespace, "__version__", ""), "names": names}

    async def _create(
        self,
        *,
        name: str,
        args: list[Any] | None = None,
        kwargs: Message | None = None,
        settings: Message | None = None,
        keep: bool = False,
        progress: bool = False,
    ) -> Any:
        """Call a public name ("pipeline", "AutoModel.from_pretrained"), fields of `env` being set before."""
        if settings is not None:
            self._named("env").update(self._decode(settings))
        return await self._invoke(self._named(name), name, args, kwargs, keep, progress)

    async def _call(
        self,
        *,
        handle: int,
        method: str | None = None,
        args: list[Any] | None = None,
        kwargs: Message | None = None,
        keep: bool = False,
        progress: bool = False,
    ) -> Any:
        """Call an object or one of its methods. `keep` leaves a result that has a value form in the worker, too."""
        target = self._object(handle)
        name = method or type(target).__name__
        if method is not None:
            owner, target = target, self._attribute(target, method)
            target = getattr(owner, f"{method}_steps", target)
        elif hasattr(target, "steps"):
            target = target.steps
        return await self._invoke(target, name, args, kwargs, keep, progress)

    def _get(
        self, *, attribute: str, handle: int | None = None, keep: bool = False, report: Report | None = None
    ) -> Any:
        """An attribute of an object, or a public name when there is no handle."""
        value = self._named(attribute) if handle is None else self._attribute(self._object(handle), attribute)
        return self._keep(value) if keep else self._encode(value)

    async def _dispose(self, *, handle: int) -> None:
        """Forget an object and free what it holds."""
        owner = self._object(handle)
        del self._objects[handle]
        dispose = getattr(owner, "dispose", None)
        if callable(dispose):
            result = dispose()
            if inspect.isawaitable(result):
                await result

    async def _invoke(
        self,
        function: Any,
        name: str,
        args: list[Any] | None,
        kwargs: Message | None,
        keep: bool,
        progress: bool,
    ) -> Any:
        if not callable(function):
            raise InputError(f"{name} is not callable.", hint="Read it with `get`.")
        positional, named = self._decode(args or []), self._decode(kwargs or {})
        report = partial(self._report, self._running) if progress else None
        stepwise = getattr(function, "__name__", "").endswith("steps")
        if report and not stepwise:
            named["progress_callback"] = report
        result = _apply(function, positional, named, name)
        if stepwise:
            result = await _exhaust(cast(Generator[Any, Any, Any], result), report)
        elif inspect.isawaitable(result):
            result = await result
        return self._keep(result) if keep else self._encode(result)

    # Names and attributes

    def _named(self, name: str) -> Any:
        first, *rest = str(name).split(".")
        public = self._namespace.__all__
        if first not in public:
            raise InputError(f"inpage has no public name {first!r}.", hint=_suggestion(first, public))
        value = getattr(self._namespace, first)
        for attribute in rest:
            value = self._attribute(value, attribute)
        return value

    def _object(self, handle: Any) -> Any:
        if handle not in self._objects:
            raise DisposedError(
                f"The worker has no object with handle {handle!r}.", hint="It was disposed of: create it again."
            )
        return self._objects[handle]

    def _attribute(self, owner: Any, name: str) -> Any:
        value = _MISSING if name.startswith("_") else getattr(owner, name, _MISSING)
        if value is not _MISSING:
            return value
        raise InputError(
            f"{type(owner).__name__} has no public attribute {name!r}.",
            hint=_suggestion(name, [n for n in dir(owner) if not n.startswith("_")]),
        )

    # Values

    def _decode(self, value: Any) -> Any:
        """A value of a message as Python has it."""
        if isinstance(value, list):
            return [self._decode(v) for v in value]
        if isinstance(value, dict):
            if "$type" not in value:
                return {k: self._decode(v) for k, v in value.items()}
            if value["$type"] == "tensor":
                return Tensor.from_values(value["data"]).reshape(tuple(value["dims"]))
            if value["$type"] == "handle":
                return self._object(value["handle"])
            raise InputError(f"A value of $type {value['$type']!r} is unknown.", hint='Send "tensor" or "handle".')
        return None if value is self._null else value

    def _encode(self, value: Any) -> Any:
        """The form of a value in a message; objects without one are kept and become handles."""
        if value is None or isinstance(value, bool | int | float | str | bytes | bytearray | memoryview):
            return value
        if isinstance(value, Tensor):
            return {"$type": "tensor", "dtype": value.dtype, "dims": list(value.dims), "data": value.data}
        if isinstance(value, Mapping):
            return {str(k): self._encode(v) for k, v in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_asdict"):
            return self._encode(value._asdict())  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(value, list | tuple | set | frozenset | Iterator):
            return [self._encode(v) for v in value]
        return self._keep(value)

    def _keep(self, value: Any) -> Message:
        handle = next(self._handles)
        self._objects[handle] = value
        methods, attributes = _members(value)
        return {
            "$type": "handle",
            "handle": handle,
            "class": type(value).__name__,
            "callable": callable(value),
            "methods": methods,
            "attributes": attributes,
        }


async def _exhaust(steps: Generator[Any, Any, Any], report: Report | None) -> Any:
    """Result of a generator that yields (done, total) after every piece of work.

    After the first and every `PAUSE` seconds, or less where a piece like the last would take longer, progress is
    reported and messages can arrive, between two pieces. A third
    element gives, when called, further fields of the event: about what was done since the call before. Each is called
    at its end.
    """
    waiting: Any = None  # what is not reported yet
    due, begun, now = 0.0, False, perf_counter()
    try:
        while True:
            before = now
            step = next(steps)
            if report is not None and waiting is not None and waiting[2:] != step[2:]:
                report(_progress(*waiting))
            waiting, is_first = step, not begun and step[0] > 0
            begun = begun or is_first
            now = perf_counter()
            if now + (now - before) < due and not is_first:
                continue
            if report is not None:
                report(_progress(*step))
            if step[0] < step[1]:
                await asyncio.sleep(0)
            waiting, now = None, perf_counter()
            due = now + PAUSE
    except StopIteration as stop:
        if report is not None and waiting is not None:
            report(_progress(*waiting))
        return stop.value
    finally:
        steps.close()


def _progress(done: int, total: int, more: Callable[[], Message] = dict) -> Message:
    return {"status": "run", "done": done, "total": total, "progress": 100 * done / max(total, 1), **more()}


def _apply(function: Any, args: list[Any], kwargs: Message, name: str) -> Any:
    """What the function returns. Raises InputError, which says what it takes, unless it takes these arguments."""
    try:
        return function(*args, **kwargs)
    except TypeError:
        _check_arguments(function, args, kwargs, name)
        raise


def _check_arguments(function: Any, args: list[Any], kwargs: Message, name: str) -> None:
    """Raise InputError unless the function takes these arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        taken = list(signature.parameters)
        unknown = next((k for k in kwargs if k not in taken), "")
        raise InputError(f"{name}: {error}.", hint=_suggestion(unknown, taken)) from None


def _suggestion(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"There are: {', '.join(known) or 'none'}."


def _members(value: Any) -> tuple[list[str], list[str]]:
    """Public methods and attributes, found without running properties."""
    methods, attributes = [], []
    for name in dir(value):
        if not name.startswith("_"):
            member = inspect.getattr_static(value, name, None)
            is_method = inspect.isroutine(member) or isinstance(member, classmethod | staticmethod)
            (methods if is_method else attributes).append(name)
    return methods, attributes


def _describe_error(error: BaseException) -> Message:
    """`{code, name, message, hint, details}`; the message ends with the hint, as in Python."""
    if isinstance(error, asyncio.CancelledError):
        error = AbortError("The request was aborted.")
    if isinstance(error, InpageError):
        details = {str(k): _plain(v) for k, v in error.details.items()}
        return {
            "code": error.code,
            "name": type(error).__name__,
            "message": str(error),
            "hint": error.hint,
            "details": details,
        }
    name = type(error).__name__
    details = {"traceback": "".join(traceback.format_exception(error))}
    return {"code": "internal", "name": name, "message": f"{name}: {error}", "hint": "", "details": details}


def _plain(value: Any) -> Any:
    """A detail of an error as plain data; what is none becomes its text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return str(value)


def connect(post: Any) -> Callable[[Any], None]:
    """Serve the page from a Pyodide worker: `post` takes a JS message; give what comes from the page to the result."""
    import js  # pyright: ignore[reportMissingImports]
    from pyodide import ffi  # pyright: ignore

    from . import runtime

    runtime.prefer_coroutines = True  # a blocked stack could not be aborted
    tasks: set[asyncio.Task[None]] = set()

    from_entries = js.Object.fromEntries

    def send(message: Message) -> None:
        if "method" in message:  # often sent, and plain: as one text
            post(dumps(message))
        else:
            post(ffi.to_js(message, dict_converter=from_entries, create_pyproxies=False))

    def receive(message: Any) -> None:
        # The first step at once: an abort need not queue behind the work that it ends.
        begun: Any = {"loop": asyncio.get_running_loop(), "eager_start": True}
        task = asyncio.Task(server.handle(message.to_py()), **begun)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = Server(send, null=getattr(ffi, "jsnull", None))
    return ffi.create_proxy(receive)
