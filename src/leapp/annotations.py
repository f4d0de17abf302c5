"""The annotations for user code.

Outside a session they return their values and import nothing. Inside a session they report to it. This module must not import
torch, NumPy or any other part of leapp, because annotated programs import it even if they never export.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypedDict, TypeVar, cast

if TYPE_CHECKING:
    import torch

    from leapp.tracing.session import Session

__all__ = ["Annotate", "BackendName", "BackendParams", "annotate"]

F = TypeVar("F", bound=Callable[..., Any])
BackendName = Literal["onnx", "pt2", "jit", "onnx-dynamo", "onnx-torchscript", "exported-program", "jit-script", "jit-trace"]
"""The values of ``export_with``; the last five are the names of earlier releases."""


class BackendParams(TypedDict, total=False):
    """The keys of ``backend_params``. Which of them a backend takes is in ``docs/export.md``."""

    opset_version: int
    optimize: bool
    verify: bool
    report: bool
    skip_validation: bool
    prescript: bool
    strict: bool
    check_trace: bool
    check_tolerance: float
    model_path: str | os.PathLike[str]
    copy_original_model: bool
    device: str


class Annotate:
    """The annotation calls. ``leapp.annotate`` is the one instance.

    Example:
        >>> obs = annotate.input_tensors("policy", {"obs": obs})
        >>> action = annotate.output_tensors("policy", {"action": torch.tanh(obs)}, export_with="onnx")
    """

    def __init__(self) -> None:
        self._session: Session | None = None

    def input_tensors(self, node_name: str, tensors: Any, *, batch_axis: int | Literal["auto"] | None = "auto") -> Any:
        """Declare inputs of a node; its recording begins with the first ones.

        Args:
            node_name: The node. Several calls for one node add ports to it.
            tensors: A dict of named values, one ``TensorSemantics``, or a list of them.
            batch_axis: With ``leapp.start(dynamic_batch=True)``, the axis of these inputs that is the batch; ``None`` if they
                have none. By default it is the first axis with the size of the batch.

        Returns:
            The value to go on with: the only one, or a tuple in the order given.

        Example:
            >>> obs = annotate.input_tensors("policy", {"obs": obs})
        """
        if self._session is not None:
            return self._session.input_tensors(node_name, tensors, batch_axis)
        if type(tensors) is dict:
            if len(tensors) == 1:
                for value in tensors.values():
                    return value
            return tuple(tensors.values())
        return _hand_back(tensors)

    def output_tensors(
        self,
        node_name: str,
        tensors: Any,
        static_outputs: Any = None,
        *,
        export_with: BackendName | None = None,
        backend_params: BackendParams | Mapping[str, Any] | None = None,
        graph_outputs: bool | str | Sequence[str] | None = None,
        **unknown: NoReturn,
    ) -> Any:
        """Declare the outputs of a node and finish it.

        Args:
            node_name: A node opened by ``input_tensors``.
            tensors: As for ``input_tensors``; every value must be computed from the node's inputs.
            static_outputs: Constant outputs, named in the same way.
            export_with: The backend: ``"onnx"``, ``"pt2"`` or ``"jit"``. ``None`` exports nothing.
            backend_params: Options of the backend.
            graph_outputs: ``True``, or names of outputs that the graph returns even though another node consumes them or they
                are fed back.
            **unknown: Refused with the nearest known name.

        Returns:
            The values given: the only one, or a tuple.

        Example:
            >>> action = annotate.output_tensors("policy", {"action": action}, export_with="onnx")
        """
        if unknown:
            place = f"output_tensors() for node '{node_name}'{self._place()}"
            _refuse_unknown(unknown, place, ("static_outputs", "export_with", "backend_params", "graph_outputs"))
        if self._session is not None:
            return self._session.output_tensors(node_name, tensors, static_outputs, export_with, backend_params, graph_outputs)
        if type(tensors) is dict:
            if len(tensors) == 1:
                for value in tensors.values():
                    return value
            return tuple(tensors.values())
        return _hand_back(tensors)

    def state_tensors(self, node_name: str, tensors: Any, *, batch_axis: int | Literal["auto"] | None = "auto") -> Any:
        """Declare state: values that enter the node and may be updated for the next call.

        Args:
            node_name: A node opened by ``input_tensors``.
            tensors: A flat dict of state names to initial tensors, or ``TensorSemantics``.
            batch_axis: As for ``input_tensors``.

        Example:
            >>> h = annotate.state_tensors("policy", {"h": h})
        """
        if self._session is not None:
            return self._session.state_tensors(node_name, tensors, batch_axis)
        if type(tensors) is dict:
            for value in tensors.values():
                if type(value) in _CONTAINERS:
                    from leapp.tracing.payload import refuse_nested_state

                    refuse_nested_state(tensors)
                elif len(tensors) == 1:
                    return value
            return tuple(tensors.values())
        return _hand_back(tensors)

    def update_state(self, node_name: str, tensors: Any) -> Any:
        """Give the values that declared states take at the next call.

        Example:
            >>> h = annotate.update_state("policy", {"h": next_h})
        """
        if self._session is not None:
            return self._session.update_state(node_name, tensors)
        if type(tensors) is dict:
            if len(tensors) == 1:
                for value in tensors.values():
                    return value
            return tuple(tensors.values())
        return _hand_back(tensors)

    def register_buffer(self, node_name: str, tensors: Any) -> Any:
        """Declare tensors or arrays that the node writes to in place.

        Use the returned values from here on. For an array it is another object over the same memory, whose calls are recorded.

        Args:
            node_name: A node opened by ``input_tensors``.
            tensors: A dict, one tensor or array, or a list or tuple of them. Values may be nested, as for ``input_tensors``.

        Example:
            >>> scratch = annotate.register_buffer("policy", {"scratch": torch.zeros(8)})
        """
        if self._session is not None:
            return self._session.register_buffer(node_name, tensors)
        if type(tensors) is dict:
            if len(tensors) == 1:
                for value in tensors.values():
                    return value
            return tuple(tensors.values())
        if isinstance(tensors, Mapping):
            tensors = tuple(tensors.values())
        elif not isinstance(tensors, (list, tuple)):
            return tensors
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def module(self, node_name: str, model: torch.nn.Module, buffer_names: list[str] | None = None) -> None:
        """Track the registered buffers of a module: those that change become state, the rest constants.

        Args:
            node_name: A node opened by ``input_tensors``.
            model: The module, before its forward pass.
            buffer_names: The buffers to track; all of them by default.

        Example:
            >>> annotate.module("policy", model)
        """
        if self._session is not None:
            self._session.module(node_name, model, buffer_names)

    def mirror_leapp_tags(self, source: Any, target: Any) -> Any:
        """Say that ``target`` holds the same data as ``source``, after a copy that leapp cannot see.

        Returns:
            ``target``; use this value from here on.

        Example:
            >>> action = annotate.mirror_leapp_tags(action, action.clone())
        """
        if self._session is not None:
            return self._session.mirror_leapp_tags(source, target)
        return target

    def method(
        self,
        *function: NoReturn,
        node_name: str | None = None,
        export_with: BackendName | None = None,
        backend_params: BackendParams | Mapping[str, Any] | None = None,
        output_names: Sequence[str] | None = None,
        input_semantics: Mapping[str, Mapping[str, Any]] | None = None,
        output_semantics: Mapping[str, Mapping[str, Any]] | None = None,
        graph_outputs: bool | str | Sequence[str] | None = None,
        **unknown: NoReturn,
    ) -> Callable[[F], F]:
        """Trace a function as one node: its arguments are the inputs, its return values the outputs.

        Called with values of an open node, or inside another decorated function, it is a part of that node.

        Args:
            *function: Refused; the decorator is written with parentheses.
            node_name: The node; the function's name by default.
            export_with: The backend, as for ``output_tensors``.
            backend_params: Options of the backend.
            output_names: Names for the returned values; by default they are read from the ``return`` statement.
            input_semantics: Fields of ``TensorSemantics`` by input name, such as ``{"q": {"kind": "state/joint/position"}}``.
            output_semantics: The same for outputs.
            graph_outputs: As for ``output_tensors``.
            **unknown: Refused with the nearest known name.

        Example:
            >>> @annotate.method(export_with="onnx")
            ... def preprocess(raw): ...
        """
        if function:
            from leapp.errors import AnnotationTypeError

            raise AnnotationTypeError(
                "annotate.method(): write the decorator with parentheses: @annotate.method(export_with=...)."
            )
        if unknown:
            known = (
                "node_name", "export_with", "backend_params", "output_names", "input_semantics", "output_semantics",
                "graph_outputs",
            )  # fmt: skip
            _refuse_unknown(unknown, "method()", known)

        def decorate(function: F) -> F:
            if isinstance(function, (staticmethod, classmethod)):
                return type(function)(decorate(function.__func__))
            from leapp.tracing.method import MethodNode, node_name_of, refuse_unfit

            refuse_unfit(function)
            settings = MethodNode(
                node_name or node_name_of(function), export_with, dict(backend_params or {}),
                None if output_names is None else list(output_names), input_semantics or {}, output_semantics or {},
                graph_outputs,
            )  # fmt: skip

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                if self._session is None:
                    return function(*args, **kwargs)
                return self._session.method(function, settings, args, kwargs)

            return cast(F, call)

        return decorate

    def _place(self) -> str:
        """The user's line, in a session."""
        if self._session is None:
            return ""
        from leapp.capture.user_line import where

        return f" at {where()}"

    def _method(self, **params: Any) -> Callable[[F], F]:
        """The older spelling of :meth:`method`."""
        return self.method(**params)

    def warp_op(
        self, node_name: str, inputs: object = None, outputs: object = None, **params: object
    ) -> AbstractContextManager[None]:
        """Mark a region of Warp kernels. Warp is not supported: inside a session this raises ``ImportError``.

        Example:
            >>> with annotate.warp_op("policy"):
            ...     pass
        """
        if self._session is not None:
            self._session.warp_op(node_name)
        return nullcontext()


_CONTAINERS = (dict, list, tuple)


def _hand_back(tensors: Any) -> Any:
    """The values of a payload that is not a plain dict. A wrong payload is refused outside of a session too."""
    from leapp.tracing.payload import entries

    values = tuple(value for _, value, _ in entries(tensors))
    return values[0] if len(values) == 1 else values


def _refuse_unknown(given: Mapping[str, object], call: str, known: Sequence[str]) -> None:
    from leapp.graph.suggest import refuse_unknown

    refuse_unknown(given, known, f"annotate.{call}")


annotate = Annotate()
