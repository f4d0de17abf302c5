"""Opens nodes and begins their passes.

One clock counts the passes of all nodes. It advances when a node that already ran in the present pass is entered again.
"""

from __future__ import annotations

from typing import Any

from leapp.capture.holders import containers_in_sight
from leapp.capture.recorder import Recorder
from leapp.capture.tape import Tape
from leapp.capture.user_line import where
from leapp.errors import AnnotationError, AnnotationTypeError, SessionError
from leapp.graph.suggest import nearest
from leapp.tracing.attributes import Attributes
from leapp.tracing.log import logger
from leapp.tracing.modules import CalledModules
from leapp.tracing.node import NodeTrace, Sample, Stage
from leapp.tracing.second_pass import SecondPass
from leapp.tracing.settings import LONGEST_NAME


class Opening:
    """Opens the nodes of a session, begins their passes and drops attempts that failed.

    Args:
        recorder: Records the open nodes.
        attributes: Compares the user's objects before and after a pass.
        modules: Collects the modules that run inside open nodes.
        second: Records the second passes of nodes.
        non_traced: The names of nodes that are not recorded.
        dynamic_batch: Whether the models are to take any number of rows.
    """

    def __init__(
        self,
        recorder: Recorder,
        attributes: Attributes,
        modules: CalledModules,
        second: SecondPass,
        non_traced: frozenset[str],
        dynamic_batch: bool,
    ) -> None:
        self._recorder, self._attributes, self._modules, self._second = recorder, attributes, modules, second
        self._non_traced, self._dynamic_batch = non_traced, dynamic_batch
        self.nodes: dict[str, NodeTrace] = {}
        self.clock = 0
        """The number of the present pass."""

    def known(self, name: str, call: str) -> NodeTrace:
        """The node of that name, which ``call`` needs."""
        node = self.nodes.get(name)
        if node is None:
            raise SessionError(
                f"{call} at {where()}: there is no node '{name}' yet.{nearest(name, self.nodes)} "
                f"Call annotate.input_tensors('{name}', ...) first; an empty dict is enough."
            )
        return node

    def open(self, name: str) -> NodeTrace:
        """The node to declare inputs on: new, open, or entered again."""
        node = self.nodes.get(name)
        if node is None:
            _check_name(name)
            node = self.nodes[name] = NodeTrace(name, self._tape(name), self.clock)
            node.older = containers_in_sight()
            if node.tape is not None:
                self._attributes.look_around()
            node.read_before = [r for r in self._recorder.published.reads.values() if r.passno == self.clock]
            logger.info("Initialised node %s", name)
        if node.finished:
            with self._recorder.silence():
                self.enter(node)
        else:
            self.listen()
        return node

    def enter(self, node: NodeTrace) -> None:
        """Continue a pass of a finished node, or begin one. Call it inside ``silence()``."""
        if not node.in_pass:
            if node.entered == self.clock:
                self.clock += 1
            if node.left:
                self.look_after(node)
            node.missed += self.clock - node.entered - 1
            node.stage, node.entered, node.current.passno, node.registered = Stage.LATER_PASS, self.clock, self.clock, 0
            if node.to_retrace:
                self._retrace(node)
            else:
                self._second.begin(node)
        elif node.entered != self.clock:
            # The user's code raised an exception in the pass before, and this is a new pass.
            node.entered, node.current, node.registered = self.clock, Sample(self.clock), 0
            self._second.begin(node)
        self.listen()

    def listen(self) -> None:
        """Record in this thread, unless every open node has run twice: then the program runs at full speed."""
        recording = bool(self._recorder.tapes)
        known = False
        if not recording:
            for node in self.nodes.values():
                if node.stage is Stage.LATER_PASS:
                    known = node.passes > 1
                    if not known:
                        break
        if known:
            self._recorder.remove()
        else:
            self._recorder.listen()
        if recording != self._modules.hooked:
            self._modules.hook(recording)

    def restart(self, node: NodeTrace) -> None:
        """Begin the first pass again, after an attempt that the user's code did not finish."""
        logger.warning("node '%s' is declared again before it was finished; what was recorded before is dropped.", node.name)
        kept = [(node.inputs[n], node.aliases[n], node.current.inputs[n]) for n in node.again]
        self._drop_tape(node)
        node.begin(self._tape(node.name), self.clock)
        for port, (t, alias), value in kept:
            node.inputs[port.name], node.aliases[port.name], node.current.inputs[port.name] = port, (t, alias), value
            if node.tape is not None:
                port.slot = node.tape.declare(alias, port.where, port.batch).slot

    def abandon(self, node: NodeTrace) -> None:
        """Drop the present pass of a node, because the user's code raised an exception."""
        if node.finished:
            self._second.drop(node)
            node.stage, node.current, node.updates = Stage.BETWEEN_PASSES, Sample(node.entered), {}
        elif node.name in self.nodes:
            self._drop_tape(node)
            del self.nodes[node.name]
        self.listen()

    def look_after(self, node: NodeTrace) -> None:
        """Note changes that were made to the state of a node after its last pass: no model contains them."""
        source, held = self._recorder.published.source, node.buffers
        for name, t in node.left.items():
            found = source(t)
            if found is not None and found.glue:
                node.changed_later.setdefault(name, found.glue[-1])
            elif held and any(b.port == name and b.module is not None and getattr(b.module, b.name, t) is not t for b in held):
                node.changed_later.setdefault(name, ("an assignment", node.outputs[name].where))

    def _tape(self, name: str) -> Tape | None:
        return None if name in self._non_traced else self._recorder.open(name, self._dynamic_batch)

    def _drop_tape(self, node: NodeTrace) -> None:
        if node.tape is not None:
            self._recorder.close(node.tape)
            node.tape.end()

    def _retrace(self, node: NodeTrace) -> None:
        """Record the second pass in place of the first, which updated a state without reading it."""
        logger.warning(
            "node '%s': the first pass updated %s without declaring it, so the node is traced again in its second pass, and "
            "the bundle starts from the values that the first pass left.", node.name, ", ".join(map(repr, sorted(node.late))),
        )  # fmt: skip
        if node.tape is not None:
            node.tape.end()
        node.begin(self._tape(node.name), self.clock)
        node.dropped_passes = 1


def _check_name(name: Any) -> None:
    """Refuse node names that cannot be file names inside the bundle."""
    if not isinstance(name, str):
        raise AnnotationTypeError(f"node names are strings, not {type(name).__name__} ({name!r}), at {where()}.")
    reserved = name.startswith(".") or any(c in name for c in '/\\:*?"<>|')
    if not name or reserved or not name.isprintable() or len(name) > LONGEST_NAME:
        raise AnnotationError(
            f"{name!r} (at {where()}) cannot be a node name: it names a file in the bundle. Use letters, digits, '_', '-', "
            "'.' and spaces, and do not begin with a dot."
        )
