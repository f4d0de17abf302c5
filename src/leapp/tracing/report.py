"""The findings of a session as data: escapes, constants, pruned inputs, glue, what was proven."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from leapp.capture.user_line import line_name, quoted_line
from leapp.graph.contract import Contract
from leapp.graph.html import card, picture, table


@dataclass(frozen=True, slots=True)
class EscapeInfo:
    """A value that left the graph: what froze it, where, and what was frozen."""

    node: str
    kind: str
    file: str
    line: int
    source: str
    value: str
    varies: bool = False
    """Whether the recorded passes prove that the model would be wrong: the frozen value is not always the same."""
    again: str = ""
    """The value in the second pass, if it is known."""
    cure: str = ""
    """What the user should do about it."""

    def __str__(self) -> str:
        at = quoted_line(self.file, self.line, self.source)
        text = f"{self.node}: {self.kind} at {at}  [frozen: {self.value}]"
        if self.varies and self.again == self.value:
            text += " -- the same in both passes, but it differs for other inputs"
        elif self.varies:
            text += f" -- differs between passes{f': {self.again} in the second' if self.again else ''}"
        return f"{text} ({self.cure})" if self.cure else text


@dataclass(frozen=True, slots=True)
class ConstantInfo:
    """A tensor that is part of a node's model."""

    node: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class GlueInfo:
    """A published output that was changed between two nodes."""

    node: str
    source: str
    ops: tuple[str, ...]
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class ProofInfo:
    """What the proof of a node's file showed.

    Attributes:
        node: The node.
        file: Its model, in the bundle's directory.
        samples: How many traced passes the file was run on.
        largest: The largest difference from a traced output; ``None`` if all outputs are random.
    """

    node: str
    file: str
    samples: int
    largest: float | None

    def __str__(self) -> str:
        passes = f"{self.samples} traced pass{'es' if self.samples != 1 else ''}"
        if self.largest is None:
            return f"{self.file} gives outputs of the shape and dtype of {passes}; their values are random"
        return f"{self.file} reproduces {passes}, " + (f"to within {self.largest:.2g}" if self.largest else "bit for bit")


@dataclass(slots=True)
class Report:
    """The findings of one session, as data. ``leapp.report()`` gives it; notebooks show it as tables.

    Example:
        >>> print(leapp.report())
        nothing left the graph
    """

    escapes: list[EscapeInfo] = field(default_factory=list)
    constants: list[ConstantInfo] = field(default_factory=list)
    pruned: dict[str, list[str]] = field(default_factory=dict)
    glue: list[GlueInfo] = field(default_factory=list)
    random: dict[str, list[str]] = field(default_factory=dict)
    training: list[str] = field(default_factory=list)
    """Modules that were called in training mode and compute something else in it."""
    notes: list[str] = field(default_factory=list)
    """Warnings about legal code that is rarely intended, such as a state that is never updated."""
    missing: list[str] = field(default_factory=list)
    """What a deployer would have to guess; known after ``compile_graph()``."""
    validation: dict[str, Any] = field(default_factory=dict)
    proven: list[ProofInfo] = field(default_factory=list)
    """The files that reproduce what was traced; known after ``compile_graph()``."""
    _wired: tuple[str, Contract] | None = field(default=None, repr=False, compare=False)
    """The graph's name and contract, for the picture; known after ``compile_graph()``."""

    def __str__(self) -> str:
        lines = [str(e) for e in self.escapes]
        lines += [f"{g.node}: {g.source} changed by {', '.join(g.ops)} before {line_name(g.file, g.line)}" for g in self.glue]
        lines += [f"{n}: pruned {', '.join(names)}" for n, names in self.pruned.items()]
        lines = [*(lines or ["nothing left the graph"]), *self.training, *self.notes]
        return "\n".join([*map(str, self.proven), *lines, *(f"missing for deployment: {text}" for text in self.missing)])

    def _repr_html_(self) -> str:
        escapes = [
            (e.node, e.kind, line_name(e.file, e.line), e.source, e.value, "yes" if e.varies else "") for e in self.escapes
        ]
        glue = [(g.node, g.source, ", ".join(g.ops), line_name(g.file, g.line)) for g in self.glue]
        constants = [(c.node, c.name, f"{c.dtype} {list(c.shape)}", c.bytes, line_name(c.file, c.line)) for c in self.constants]
        proven = [(p.node, p.file, p.samples, "random" if p.largest is None else f"{p.largest:.2g}") for p in self.proven]
        parts = [
            table("proven", ("node", "file", "traced passes reproduced", "largest difference"), proven),
            table("escapes", ("node", "what", "where", "source", "frozen", "differs between passes"), escapes),
            table("glue", ("node", "output", "changed by", "before"), glue),
            table("pruned inputs", ("node", "inputs"), [(n, ", ".join(names)) for n, names in self.pruned.items()]),
            table("random", ("node", "where"), [(n, ", ".join(places)) for n, places in self.random.items()]),
            table("missing for deployment", ("what",), [(text,) for text in self.missing]),
            table("constants", ("node", "name", "type", "bytes", "where"), constants, open=False),
        ]
        facts = {"escapes": len(self.escapes), "glue": len(self.glue), "constants": len(self.constants)}
        return card("Report", facts, [picture(*self._wired) if self._wired is not None else "", *parts])
