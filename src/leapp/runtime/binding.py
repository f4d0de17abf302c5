"""Vectors in the robot's order instead of the policy's: element names turned into permutations once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from leapp.graph.contract import Port
from leapp.runtime.ports import named_axis, permutation

__all__ = ["Bound", "Reordering", "reorder"]

Reordering = tuple[Any, ...]
"""An index that puts the elements of one axis into another order."""


def reorder(key: str, port: Port, names: Sequence[str], entering: bool) -> Reordering:
    """The index that takes a value from the robot's order to the port's (``entering``), or back."""
    axis, elements = named_axis(key, port, names)
    places = permutation(key, elements, names)
    if not entering:
        places = [int(place) for place in np.argsort(places)]
    return (*(slice(None),) * axis, places)


class Bound:
    """A pipeline whose bound inputs and outputs are in the robot's order. The rest passes as it is."""

    def __init__(
        self,
        step: Callable[[Mapping[str, Any]], dict[str, Any]],
        inputs: Mapping[str, Reordering],
        outputs: Mapping[str, Reordering],
    ) -> None:
        self._step = step
        self._inputs = dict(inputs)
        self._outputs = dict(outputs)

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run one step; see the pipeline this came from."""
        given = dict(inputs)
        for key, index in self._inputs.items():
            if key in given:
                given[key] = _moved(given[key], index)
        results = self._step(given)
        for key, index in self._outputs.items():
            results[key] = results[key][index]
        return results


def _moved(value: Any, index: Reordering) -> Any:
    """The value with its elements in the port's order; a value of the wrong shape is the pipeline's to refuse."""
    axis = len(index) - 1
    shape = np.shape(value) if not hasattr(value, "shape") else value.shape
    if len(shape) <= axis or shape[axis] != len(index[-1]):
        return value
    # Numbers in lists have no dtype yet; the pipeline gives them the port's.
    return value[index] if hasattr(value, "shape") else np.asarray(value)[index].tolist()
