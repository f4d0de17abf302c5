"""Information about a pipeline that needs no step: its ports, their meaning, and the description in the bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leapp.bundle.contract_yaml import MODELS, PIPELINE, SYSTEM, dump_contract
from leapp.bundle.yaml_text import parse
from leapp.errors import InputError, UnknownPortError
from leapp.runtime.base import RunnerBase
from leapp.runtime.binding import Bound, Reordering, reorder
from leapp.runtime.ports import PortInfo, describe


class Description(RunnerBase):
    """A runner's description of itself."""

    @property
    def inputs(self) -> list[str]:
        """The keys a step takes."""
        return list(self._plan.inputs)

    @property
    def outputs(self) -> list[str]:
        """The keys a step returns."""
        return list(self._plan.outputs)

    @property
    def feedback_inputs(self) -> list[str]:
        """The keys that hold state between steps."""
        return list(self._plan.feedback)

    @property
    def digest(self) -> str | None:
        """The digest of the bundle, if it is sealed."""
        return self._bundle.digest

    @property
    def configs(self) -> dict[str, Any]:
        """What was given as ``graph_configs`` at export."""
        return dict(self._plan.contract.pipeline.configs or {})

    @property
    def frequency(self) -> float | None:
        """The rate in hertz the pipeline was made for, if the bundle says."""
        return self._plan.contract.pipeline.frequency  # type: ignore[no-any-return]

    @property
    def leapp_description(self) -> dict[str, Any]:
        """The bundle's YAML as plain values."""
        return dict(parse(dump_contract(self._plan.contract), "bundle"))

    @property
    def models(self) -> dict[str, Any]:
        """The ``models`` part of the description."""
        return dict(self.leapp_description[MODELS])

    @property
    def pipeline(self) -> dict[str, Any]:
        """The ``pipeline`` part of the description."""
        return dict(self.leapp_description[PIPELINE])

    @property
    def system_info(self) -> dict[str, Any]:
        """The ``system information`` part of the description."""
        return dict(self.leapp_description[SYSTEM])

    @property
    def input_ports(self) -> dict[str, PortInfo]:
        """The catalogue of inputs."""
        return {k: describe(k, self._plan.input_ports[k], "input") for k in self._plan.inputs}

    @property
    def output_ports(self) -> dict[str, PortInfo]:
        """The catalogue of outputs."""
        return {k: describe(k, self._plan.output_ports[k], "output") for k in self._plan.outputs}

    @property
    def feedback_ports(self) -> dict[str, PortInfo]:
        """The catalogue of inputs that hold state."""
        return {k: describe(k, self._plan.input_ports[k], "feedback") for k in self._plan.feedback}

    @property
    def ports(self) -> list[PortInfo]:
        """The whole catalogue: inputs, feedback, outputs."""
        return [*self.input_ports.values(), *self.feedback_ports.values(), *self.output_ports.values()]

    def __repr__(self) -> str:
        what = f"{len(self._plan.contract.nodes)} nodes, takes {self.inputs}, returns {self.outputs}"
        return f"<{type(self).__name__} {self._bundle.graph!r}: {what}>"

    def _repr_html_(self) -> str:
        from leapp.graph.html import describe_contract  # for notebooks only

        graph = self._bundle.graph
        return describe_contract(f"{type(self).__name__} {graph}", graph, self._plan.contract, self.digest)

    def inputs_by_kind(self, kind: object) -> list[PortInfo]:
        """All inputs of a kind, given as a string or as an enum member.

        Example:
            >>> [port.key for port in pipeline.inputs_by_kind("state/joint/position")]
            ['policy/obs']
        """
        return [port for port in self.input_ports.values() if port.kind == _kind(kind)]

    def outputs_by_kind(self, kind: object) -> list[PortInfo]:
        """All outputs of a kind, given as a string or as an enum member.

        Example:
            >>> [port.key for port in pipeline.outputs_by_kind("target/joint/position")]
            ['policy/action']
        """
        return [port for port in self.output_ports.values() if port.kind == _kind(kind)]

    def input_by_kind(self, kind: object) -> PortInfo | None:
        """The first input of a kind, or None.

        Example:
            >>> pipeline.input_by_kind("state/joint/position").element_names
            ('hip', 'knee')
        """
        return next(iter(self.inputs_by_kind(kind)), None)

    def output_by_kind(self, kind: object) -> PortInfo | None:
        """The first output of a kind, or None.

        Example:
            >>> pipeline.output_by_kind("kp") is None
            True
        """
        return next(iter(self.outputs_by_kind(kind)), None)

    def bind(
        self, inputs: Mapping[str, Sequence[str]] | None = None, outputs: Mapping[str, Sequence[str]] | None = None
    ) -> Bound:
        """The same pipeline for vectors in the robot's order.

        Args:
            inputs: For an input key, the names of the elements in the order the robot gives them.
            outputs: For an output key, the names of the elements in the order the robot wants them.

        Raises:
            InputError: Names do not match the elements of their port. The message lists missing and extra names of every port.
            UnknownPortError: A key names no input or output.

        Example:
            >>> robot = pipeline.bind(inputs={"policy/obs": ["knee", "hip"]})
            >>> outputs = robot({"policy/obs": np.array([0.3, -0.1], np.float32)})  # knee first
        """
        entering, leaving = inputs or {}, outputs or {}
        for where, keys in [(k, self.inputs) for k in entering] + [(k, self.outputs) for k in leaving]:
            if where not in keys:
                raise UnknownPortError(f"{where!r} cannot be bound; there are {keys}.")
        ports = self._plan.input_ports, self._plan.output_ports
        orders: tuple[dict[str, Reordering], dict[str, Reordering]] = ({}, {})
        problems = []
        for side, names in enumerate((entering, leaving)):
            for k, given in names.items():
                try:
                    orders[side][k] = reorder(k, ports[side][k], given, side == 0)
                except InputError as error:
                    problems.append(str(error))
        if problems:
            raise InputError("\n".join(problems))
        return Bound(self, *orders)


def _kind(kind: object) -> object:
    return getattr(kind, "value", kind)
