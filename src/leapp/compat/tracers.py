"""Private names of torch's tracers: tensors without memory, symbolic sizes, functional traces.

Importing this loads torch's compiler and a computer algebra system, which takes longer than most exports.
"""

from __future__ import annotations

from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, statically_known_true

__all__ = [
    "ConstantSource", "DimDynamic", "DynamicOutputShapeException", "FakeTensor", "FakeTensorMode", "FunctionalTensorMode",
    "ShapeEnv", "dispatch_functionalize", "make_fx", "statically_known_true",
]  # fmt: skip
