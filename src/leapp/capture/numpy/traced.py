"""The class of traced arrays. Its methods pass calls to the session's :class:`~leapp.capture.numpy.arrays.Arrays`.

Outside of a session, and in threads that are not recorded, a traced array behaves as a plain one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy import ndarray

from leapp.capture.user_line import where
from leapp.errors import TraceError

if TYPE_CHECKING:
    from leapp.capture.numpy.arrays import Arrays

_current: Arrays | None = None


def set_current(arrays: Arrays | None) -> None:
    """Set the object that array calls are passed to."""
    global _current
    _current = arrays


def listening() -> Arrays | None:
    """The arrays of the open session, if it is recording."""
    return _current if _current is not None and _current.memory.listening else None


def _bare(value: Any) -> Any:
    from leapp.capture.numpy.plain import unwrapped

    return unwrapped(value)


def leaving(name: str, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A method of arrays or numbers that returns plain values, which leave the graph."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        plain = function or getattr(type(_bare(self)), name)
        arrays = listening()
        if arrays is None:
            return plain(*_bare((self, *args)), **_bare(kwargs))
        return arrays.through(plain, name, self, args, kwargs)

    method.__name__ = name
    return method


def _function(name: str) -> Callable[..., Any]:
    """A method that calls the NumPy function of the same name."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(np, name)(self, *args, **kwargs)

    method.__name__ = name
    return method


def _shape_of(name: str) -> property:
    def read(self: Any) -> Any:
        value = vars(ndarray)[name].__get__(self)
        arrays = listening()
        if arrays is not None:
            return arrays.shape_read(self, name, value)
        return value

    def write(self: Any, value: Any) -> None:
        vars(ndarray)[name].__set__(self, value)
        if _current is not None:
            _current.memory.reshaped(self)

    return property(read, write)


def _memory(name: str) -> property:
    """A property that gives access to the memory of the array, which is reported as an escape."""

    def read(self: Any) -> Any:
        _tell(self, name)
        return vars(ndarray)[name].__get__(self)

    return property(read)


def _tell(array: Any, kind: str = "memoryview") -> None:
    arrays = listening()
    if arrays is not None:
        arrays.memory.escape(arrays.memory.traced(array), kind, [array], _bare(array))


def _sequence(args: tuple[Any, ...]) -> Any:
    return args[0] if len(args) == 1 else args


class ArrayMethods:
    """The methods in which a traced array differs from ``np.ndarray``. ``self: Any``, since it is both classes at once."""

    __slots__ = ()

    for _name in (
        "mean std var argmin argmax cumsum cumprod round take repeat squeeze swapaxes ravel diagonal trace dot nonzero "
        "argsort searchsorted choose argpartition conj conjugate"
    ).split():
        vars()[_name] = _function(_name)
    for _name in (
        "item tolist tobytes tofile dump dumps __bool__ __int__ __float__ __complex__ __index__ __reduce__ __reduce_ex__ "
        "__dlpack__ __repr__ __str__ __format__ byteswap"
    ).split():
        vars()[_name] = leaving(_name)
    for _name in "shape size nbytes".split():
        vars()[_name] = _shape_of(_name)
    for _name in "data ctypes __array_interface__ __array_struct__".split():
        vars()[_name] = _memory(_name)
    for _name in "lt le eq ne gt ge".split():
        vars()[f"__{_name}__"] = vars(ndarray)[f"__{_name}__"]
    del _name
    __hash__ = None  # type: ignore[assignment]

    def clip(self: Any, min: Any = None, max: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Limit the values. ``np.clip`` has other names for the bounds, and in NumPy 1 it requires both of them."""
        return np.clip(self, min, max, *args, **kwargs)

    def __array_ufunc__(self: Any, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        arrays = listening()
        if arrays is None:
            return _outside(getattr(ufunc, method)(*_bare(inputs), **_bare(kwargs)), kwargs.get("out"))
        return arrays.followed((inputs, kwargs), arrays.ufuncs.ufunc(ufunc, method, inputs, kwargs))

    def __array_function__(self: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arrays = listening()
        if arrays is None:
            return _outside(func(*_bare(args), **_bare(kwargs)), kwargs.get("out"))
        return arrays.followed((args, kwargs), arrays.function(func, args, kwargs))

    def __getitem__(self: Any, index: Any) -> Any:
        arrays = listening()
        if arrays is None:
            return ndarray.__getitem__(_bare(self), _bare(index))
        return arrays.getitem(self, index)

    def __setitem__(self: Any, index: Any, value: Any) -> None:
        arrays = listening()
        if arrays is None:
            ndarray.__setitem__(_bare(self), _bare(index), _bare(value))
        else:
            arrays.setitem(self, index, value)

    def __iter__(self: Any) -> Iterator[Any]:
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        return iter([self[i] for i in range(len(self))])

    def __len__(self: Any) -> int:
        value = len(ndarray.view(self, np.ndarray))
        arrays = listening()
        if arrays is not None:
            arrays.shape_read(self, "__len__", value)
        return value

    def __contains__(self: Any, value: Any) -> bool:
        return bool((self == value).any())

    def __copy__(self: Any) -> Any:
        return self.copy()

    def __deepcopy__(self: Any, memo: Any) -> Any:
        return self.copy()

    @property
    def T(self: Any) -> Any:  # noqa: N802 - NumPy's name
        """The array with its axes reversed."""
        return np.transpose(self)

    @property
    def mT(self: Any) -> Any:  # noqa: N802 - NumPy's name
        """The array with its last two axes exchanged."""
        return np.swapaxes(self, -1, -2)

    @property
    def real(self: Any) -> Any:
        """The real part."""
        return np.real(self)

    @real.setter
    def real(self: Any, value: Any) -> None:
        np.real(self)[...] = value

    @property
    def imag(self: Any) -> Any:
        """The imaginary part."""
        return np.imag(self)

    @imag.setter
    def imag(self: Any, value: Any) -> None:
        np.imag(self)[...] = value

    @property
    def flat(self: Any) -> Any:
        """The elements in order, as a view where there is one."""
        return _Flat(self)

    @flat.setter
    def flat(self: Any, value: Any) -> None:
        _Flat(self)[:] = value

    def copy(self: Any, order: Any = "C") -> Any:
        """A copy of the array."""
        return _both(self, "copy", (order,), {}, lambda t: t.clone())

    def flatten(self: Any, order: Any = "C") -> Any:
        """A one-dimensional copy."""
        return np.ravel(self, order).copy()

    def astype(self: Any, dtype: Any, order: Any = "K", casting: Any = "unsafe", subok: bool = True, copy: bool = True) -> Any:
        """A copy in another dtype."""
        if not copy and np.dtype(dtype) == self.dtype:
            return self
        return _both(self, "astype", (dtype, order, casting, subok, True), {}, lambda t: t.to(_torch(dtype), copy=True))

    def reshape(self: Any, *shape: Any, order: Any = "C", copy: Any = None) -> Any:
        """The array in another shape."""
        return np.reshape(self, _sequence(shape), order=order)

    def transpose(self: Any, *axes: Any) -> Any:
        """The array with its axes exchanged."""
        return np.transpose(self, _sequence(axes) if axes else None)

    def compress(self: Any, condition: Any, axis: Any = None, out: Any = None) -> Any:
        """The chosen slices along an axis."""
        return np.compress(condition, self, axis, out)

    def fill(self: Any, value: Any) -> None:
        """Set every element."""
        self[...] = value

    def put(self: Any, indices: Any, values: Any, mode: Any = "raise") -> None:
        """Set elements of the flattened array."""
        np.put(self, indices, values, mode)

    def sort(self: Any, axis: int = -1, kind: Any = None, order: Any = None, **options: Any) -> None:
        """Sort the array in place."""
        self[...] = np.sort(self, axis, kind, order, **options)

    def partition(self: Any, kth: Any, axis: int = -1, kind: Any = "introselect", order: Any = None) -> None:
        """Partition the array in place."""
        self[...] = np.partition(self, kth, axis, kind, order)

    def resize(self: Any, *shape: Any, refcheck: bool = True) -> None:
        """Refused inside a node: NumPy resizes an array that owns its memory, and a traced one does not."""
        if listening() is not None:
            raise TraceError(
                f"at {where()} an array is resized in place, which works outside of a node only. Do it before the node, or "
                "make a new array, as np.pad() does."
            )
        ndarray.resize(self, *shape, refcheck=refcheck)

    def view(self: Any, *args: Any, **kwargs: Any) -> Any:
        """A view of the memory."""
        made = ndarray.view(self, *args, **kwargs)
        arrays = listening()
        if arrays is None or arrays.memory.traced(self) is None:
            return made
        if made.dtype != self.dtype:
            return _both(self, "view", args, kwargs, lambda t: t.view(_torch(made.dtype)))
        if type(made) is np.ndarray:
            return arrays.memory.wrap(made)
        if type(made) is not TracedNpArray:
            arrays.memory.escape(arrays.memory.traced(self), f"view as {type(made).__name__}", [self], made)
        return made


class _Flat:
    """The elements of an array in order, as ``np.flatiter`` gives them."""

    def __init__(self, array: Any) -> None:
        self.base, self.index = array, 0

    @property
    def coords(self) -> tuple[int, ...]:
        """The index of the next element."""
        return tuple(int(i) for i in np.unravel_index(self.index % max(len(self), 1), _bare(self.base).shape))

    def copy(self) -> Any:
        """The elements as an array of their own."""
        return self.base.flatten()

    __array__ = copy

    def __len__(self) -> int:
        return int(self.base.size)

    def __iter__(self) -> _Flat:
        return self

    def __next__(self) -> Any:
        if self.index >= len(self):
            raise StopIteration
        place, self.index = self.coords, self.index + 1
        return self.base[place]

    def __getitem__(self, index: Any) -> Any:
        return self.copy()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        changed = self.copy()
        changed[index] = value
        self.base[...] = changed.reshape(_bare(self.base).shape)


def _torch(dtype: Any) -> Any:
    from leapp.capture.numpy.plain import torch_dtype

    return torch_dtype(dtype)


def _both(
    array: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], expression: Callable[[torch.Tensor], Any]
) -> Any:
    """Run a method in NumPy, record ``expression`` in torch, and compare the two."""
    arrays = listening()

    def numpy() -> Any:
        value = getattr(ndarray.view(array, np.ndarray), name)
        return value(*args, **kwargs) if callable(value) else value

    if arrays is None:
        return numpy()
    if not arrays.memory.concerned([array]):
        return arrays.memory.follow(numpy(), [array])
    return arrays.runs.perform(name, [array], numpy, lambda: expression(arrays.memory.tensor(array)))  # type: ignore[arg-type]


def _outside(result: Any, out: Any) -> Any:
    outs = out if isinstance(out, tuple) else (out,) if out is not None else ()
    return outs[0] if len(outs) == 1 and outs[0] is not None else result


class _ArrayType(type):
    """The class of the class of traced arrays, which equals ``np.ndarray``: ``type(x) == np.ndarray`` holds."""

    def __eq__(cls, other: object) -> bool:
        return other is ndarray or other is cls

    def __hash__(cls) -> int:
        return hash(ndarray)


class TracedNpArray(ArrayMethods, ndarray, metaclass=_ArrayType):  # type: ignore[misc]
    """A NumPy array whose calls a session sees. Its class has the name of ``np.ndarray``, for code that reads the name."""

    __slots__ = ()
    __module__ = "numpy"

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return ndarray


TracedNpArray.__name__ = TracedNpArray.__qualname__ = "ndarray"
