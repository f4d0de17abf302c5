"""What a row of a table is, and how its inputs are drawn.

A row is a plain function over tensors (or arrays) as a user would write it. Inputs are drawn from a seeded generator, so
that a row can be fed values it was never traced with. Nothing here knows leapp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = [
    "PORTS",
    "Case",
    "Draw",
    "Table",
    "bools",
    "distinct",
    "index",
    "ints",
    "normal",
    "permutation",
    "quaternion",
    "spd",
    "uniform",
]

Draw = Callable[[torch.Generator], torch.Tensor]
PORTS = "xyzwuvpqrs"
"""Port names, by position of the input."""


@dataclass(frozen=True)
class Case:
    """One row.

    Attributes:
        table: Name of the table the row stands in.
        name: Name of the row, also the name of its node.
        fn: The user code. Takes the inputs, preceded by the result of ``setup`` if there is one; returns a tensor, an
            array, or a list, tuple or dict of them.
        draws: One per input.
        setup: Makes what the code uses beside its inputs (a module, a buffer, a compiled function). Called with the
            global seed set, before the session opens, and anew for every run.
        numpy: The inputs are NumPy arrays.
        rtol: Relative tolerance of the exported model; by dtype when None.
        atol: Absolute tolerance; by dtype when None.
        apart: Backends on which the row has a node of its own. "onnx": it is unrolled into a thousand operators, which need not
            take the slow way of a node with others in it. "jit": torch's optimiser breaks it beside other products of matrices,
            or takes 0.0 and -0.0 of one node for the same number.
        reports: For escapes: the kinds of report of which at least one is expected.
    """

    table: str
    name: str
    fn: Callable[..., Any]
    draws: tuple[Draw, ...]
    setup: Callable[[], Any] | None = None
    numpy: bool = False
    rtol: float | None = None
    atol: float | None = None
    apart: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()

    def draw(self, seed: int) -> dict[str, Any]:
        """The inputs by port name, the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        values = [draw(generator) for draw in self.draws]
        return {port: v.numpy() if self.numpy else v for port, v in zip(PORTS, values, strict=False)}

    def run(self, inputs: Sequence[Any], state: Any) -> Any:
        """Run the user code on ``inputs`` with what ``setup`` made."""
        return self.fn(*inputs) if self.setup is None else self.fn(state, *inputs)

    def make_state(self) -> Any:
        """What ``setup`` makes, the same at each call."""
        torch.manual_seed(0)
        return None if self.setup is None else self.setup()


class Table:
    """A named list of rows; calling it adds one."""

    def __init__(self, name: str, *, numpy: bool = False) -> None:
        self.name = name
        self.numpy = numpy
        self.cases: list[Case] = []

    def __call__(self, name: str, fn: Callable[..., Any], *draws: Draw, **more: Any) -> None:
        if any(case.name == name for case in self.cases):
            raise ValueError(f"table {self.name} has two rows named {name!r}")
        self.cases.append(Case(self.name, name, fn, draws, numpy=self.numpy, **more))


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Draw:
    """Standard normal values."""
    return lambda g: torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)


def uniform(low: float, high: float, *shape: int, dtype: torch.dtype = torch.float32) -> Draw:
    """Uniform values in ``[low, high)``."""
    return lambda g: (torch.rand(shape, generator=g, dtype=torch.float64) * (high - low) + low).to(dtype)


def ints(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Draw:
    """Integers in ``[low, high)``."""
    return lambda g: torch.randint(low, high, shape, generator=g).to(dtype)


def index(n: int, *shape: int) -> Draw:
    """Valid indices into an axis of length ``n``."""
    return ints(0, n, *shape)


def bools(*shape: int) -> Draw:
    """Booleans with at least one True and one False when there is room for both."""

    def draw(g: torch.Generator) -> torch.Tensor:
        mask = torch.rand(shape, generator=g) < 0.5
        flat = mask.view(-1)
        if flat.numel() > 1 and bool((flat == flat[0]).all()):
            flat[0] = ~flat[0]
        return mask

    return draw


def distinct(*shape: int, dtype: torch.dtype = torch.float32) -> Draw:
    """Values no two of which are close, for code whose result depends on their order."""

    def draw(g: torch.Generator) -> torch.Tensor:
        n = torch.Size(shape).numel()
        steps = torch.randperm(n, generator=g) + 0.25 * torch.rand(n, generator=g)
        return ((steps - n / 2) / 4).reshape(shape).to(dtype)

    return draw


def permutation(n: int) -> Draw:
    """A permutation of ``range(n)``."""
    return lambda g: torch.randperm(n, generator=g)


def spd(*shape: int, dtype: torch.dtype = torch.float32) -> Draw:
    """Symmetric positive definite matrices with well separated eigenvalues."""

    def draw(g: torch.Generator) -> torch.Tensor:
        a = torch.randn(shape, generator=g, dtype=torch.float64)
        q = torch.linalg.qr(a)[0]
        n = shape[-1]
        values = torch.arange(1, n + 1, dtype=torch.float64) + 0.5 * torch.rand(n, generator=g, dtype=torch.float64)
        m = (q * values) @ q.mT
        return ((m + m.mT) / 2).to(dtype)

    return draw


def quaternion(*shape: int) -> Draw:
    """Unit quaternions, shape ``(*shape, 4)``."""

    def draw(g: torch.Generator) -> torch.Tensor:
        q = torch.randn((*shape, 4), generator=g)
        return q / q.norm(dim=-1, keepdim=True)

    return draw
