"""Operators and weights of a node's model for the page: a few numbers, with limited work for models of any size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leapp.view.onnx_model import read_onnx

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAX_VALUES = 1 << 16
"""How many values of a weight are read."""
_MAX_OPERATORS, _MAX_WEIGHTS, _BINS = 400, 60, 32


def model_facts(path: Path) -> dict[str, Any]:
    """The ``operators`` and ``weights`` of an ONNX file; empty for a file that is missing or damaged."""
    try:
        model = read_onnx(path)
    except (OSError, ValueError):
        return {}
    weights = [weight_facts(w.name, w.shape, w.dtype, w.array()) for w in model.weights[:_MAX_WEIGHTS]]
    return {
        "operators": {"total": len(model.operators), "list": model.operators[:_MAX_OPERATORS]},
        "weights": weights_facts(weights, len(model.weights)),
    }


def weights_facts(weights: Sequence[dict[str, Any]], total: int) -> dict[str, Any]:
    """The weights of one node, at most as many as a reader looks at."""
    return {"total": total, "list": list(weights[:_MAX_WEIGHTS])}


def weight_facts(name: str, shape: Sequence[int], dtype: str, values: npt.NDArray[np.generic] | None = None) -> dict[str, Any]:
    """One weight: its shape and dtype, and range, mean and standard deviation of its values.

    Args:
        name: Its name.
        shape: Its shape.
        dtype: Its dtype.
        values: All values, or some of them, evenly spaced. None if they cannot be read.
    """
    import numpy as np

    facts: dict[str, Any] = {"name": name, "shape": list(shape), "dtype": dtype}
    count = math.prod(shape)
    if values is None or not values.size or values.dtype.kind not in "fiub":
        return facts | {"note": "empty" if not count else "values not shown"}
    flat = spaced(values.reshape(-1), MAX_VALUES)
    if len(flat) < count:
        facts |= {"count": count, "sampled": len(flat)}
    wide = flat.astype(np.float64)
    finite = wide if np.isfinite(wide.sum()) else wide[np.isfinite(wide)]
    if len(finite) < len(wide):
        facts["odd"] = len(wide) - len(finite)
    if not finite.size:
        return facts
    low, high = float(finite.min()), float(finite.max())
    facts |= {"low": rounded(low), "high": rounded(high), "mean": rounded(float(finite.mean()))}
    if high > low and finite.size > 4:
        place = ((finite - low) * (_BINS / (high - low))).astype(np.intp)
        facts["bins"] = np.bincount(np.minimum(place, _BINS - 1), minlength=_BINS).tolist()
    return facts


def spaced(values: Any, most: int) -> Any:
    """At most ``most`` values of a flat array or tensor, evenly spaced."""
    return values[:: -(-len(values) // most)] if len(values) > most else values


def rounded(value: Any) -> float | None:
    """A number rounded to four digits; None for NaN and infinity, which JSON lacks."""
    return float(f"{float(value):.4g}") if math.isfinite(value) else None
