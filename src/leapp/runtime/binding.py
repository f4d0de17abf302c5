"""Reorders vectors between the robot's order and the policy's. The permutations are computed once, from element names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from leapp.errors import BundleError, InputError
from leapp.graph.contract import Port

Reordering = tuple[Any, ...]
"""An index that puts the elements of one axis into another order."""


def reorder(key: str, port: Port, names: Sequence[str], entering: bool) -> Reordering:
    """The index that takes a value from the robot's order to the port's (``entering``), or back."""
    axis, elements = _named_axis(key, port, names)
    places = _permutation(key, elements, names)
    if not entering:
        places = [int(place) for place in np.argsort(places)]
    return (*(slice(None),) * axis, places)


def _named_axis(key: str, port: Port, given: Iterable[str]) -> tuple[int, list[str]]:
    """The axis of a port whose elements have names, with the names. If several axes have names, the one with the given names.

    If ``element_names`` has one entry for each axis, each list belongs to its axis; else the lists belong to the last axes.

    Raises:
        InputError: No axis has names, or several have and none of them those given.
        BundleError: There are more or fewer names than elements.
    """
    entries = port.element_names or []
    first = len(port.shape) - len(entries)
    axes = [(first + i, [str(n) for n in e]) for i, e in enumerate(entries) if isinstance(e, list) and e]
    if not axes:
        raise InputError(f"{key!r} has no element names. Leave it out of bind, or give them when exporting.")
    if len(axes) > 1:
        known = [names for _, names in axes]
        axes = [(axis, names) for axis, names in axes if set(names) == set(given)]
        if len(axes) != 1:
            raise InputError(f"The names bound to {key!r} are those of no axis, or of several. Its axes have {known}.")
    axis, names = axes[0]
    if axis < 0 or port.shape[axis] != len(names):
        raise BundleError(f"{key!r} has {len(names)} element names for its shape {list(port.shape)}.")
    return axis, names


def _permutation(key: str, wanted: Sequence[str], given: Iterable[str]) -> list[int]:
    """For each wanted name its position in ``given``.

    Raises:
        InputError: The two do not hold the same names. The message lists what is missing and what is extra.
    """
    given = list(given)
    missing = [name for name in wanted if name not in given]
    extra = [name for name in given if name not in wanted]
    twice = sorted({name for name in given if given.count(name) > 1})
    if missing or extra or twice:
        found = {"missing": missing, "extra": extra, "twice": twice}
        parts = [f"{what} {names}" for what, names in found.items() if names]
        raise InputError(f"The names bound to {key!r} do not fit its elements: {', '.join(parts)}.")
    return [given.index(name) for name in wanted]


class Bound:
    """A pipeline whose bound inputs and outputs are in the robot's order. Other values are passed on unchanged.

    Example:
        >>> robot = pipeline.bind(outputs={"policy/action": ["knee", "hip"]})
        >>> action = robot({"policy/obs": obs.numpy()})["policy/action"]  # knee first
    """

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
    """The value with its elements in the port's order. A value of the wrong shape is left to the pipeline, which refuses it."""
    axis = len(index) - 1
    shape = np.shape(value) if not hasattr(value, "shape") else value.shape
    if len(shape) <= axis or shape[axis] != len(index[-1]):
        return value
    # A list stays a list: its numbers get the dtype of the port in the pipeline.
    return value[index] if hasattr(value, "shape") else np.asarray(value)[index].tolist()
