"""The ways people declare ports, state, feedback and nodes, written so that leapp 0.7.2 can run them as well as this leapp.

A pattern builds a fresh program; its step takes the graph inputs of one step and returns what the graph should output. Nothing
here may use a name that leapp 0.7.2 does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from leapp import GraphConfigs, InputKindEnum, OutputKindEnum, TemporalAxis, TensorSemantics, annotate

A = annotate
Tensor = torch.Tensor
Values = dict[str, Tensor]
Step = Callable[[Values], Values]
ALL = ("jit", "onnx", "pt2")


@dataclass(frozen=True)
class Pattern:
    """A program in a loop. ``inputs`` gives the shape of each graph input, or its shape and dtype."""

    name: str
    make: Callable[..., Step]
    inputs: dict[str, Any]
    passes: int
    mode: str
    backends: tuple[str, ...]
    start: dict[str, Any] = field(default_factory=dict)
    configs: Any = None
    reader: str = ""
    """Why the runtime of leapp 0.7.2 does not do what the bundle says, if it does not."""

    @property
    def runs(self) -> bool:
        """Whether its bundle can be run at all: a node without a model cannot."""
        return "non_traced" not in self.start

    def draw(self, generator: torch.Generator) -> Values:
        """New values for all graph inputs."""
        return {key: _draw(spec, generator) for key, spec in self.inputs.items()}


def _draw(spec: Any, generator: torch.Generator) -> Tensor:
    shape, dtype = (spec[0], getattr(torch, spec[1])) if spec and isinstance(spec[0], tuple) else (spec, torch.float32)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(0, 20, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


PATTERNS: dict[str, Pattern] = {}
AT_ONCE = "its runtime hands feedback on at once, so a node later in the pass does not get the value of the pass before"


def pattern(
    inputs: dict[str, Any], passes: int = 2, mode: str = "no_grad", backends: tuple[str, ...] = ALL, configs: Any = None,
    reader: str = "", **start: Any,
) -> Callable[..., Callable[..., Step]]:  # fmt: skip
    """Put a function that builds a program into the table."""

    def register(make: Callable[..., Step]) -> Callable[..., Step]:
        PATTERNS[make.__name__] = Pattern(make.__name__, make, inputs, passes, mode, backends, start, configs, reader)
        return make

    return register


# -- ports -------------------------------------------------------------------------------------------------------------


@pattern({"n/s_p": (3,), "n/s_l_0": (3,), "n/s_l_1_0": (3,), "n/rows_0_a": (3,), "n/rows_1_a": (3,)})
def nested_structures(b: str) -> Step:
    """Dicts, lists, tuples and lists of dicts, on both sides of a node."""

    def step(i: Values) -> Values:
        v = {k.split("/")[1]: t for k, t in i.items()}
        given = {"s": {"p": v["s_p"], "l": [v["s_l_0"], (v["s_l_1_0"],)]}, "rows": [{"a": v["rows_0_a"]}, {"a": v["rows_1_a"]}]}
        s, rows = A.input_tensors("n", given)
        out = {"sum": s["p"] + s["l"][0], "pair": (s["l"][1][0] * 2.0, s["p"] * 3.0)}
        listed = [{"b": rows[0]["a"] * s["l"][0]}, {"b": rows[1]["a"] - s["l"][1][0]}]
        A.output_tensors("n", {"out": out, "listed": listed}, export_with=b)
        return {
            "n/out_sum": out["sum"], "n/out_pair_0": out["pair"][0], "n/out_pair_1": out["pair"][1],
            "n/listed_0_b": listed[0]["b"], "n/listed_1_b": listed[1]["b"],
        }  # fmt: skip

    return step


class Pair(NamedTuple):
    """A named tuple as a port."""

    left: Tensor
    right: Tensor


@pattern({"n/pair_left": (3,), "n/pair_right": (3,)})
def named_tuples(b: str) -> Step:
    """Fields become ports."""

    def step(i: Values) -> Values:
        pair = A.input_tensors("n", {"pair": Pair(i["n/pair_left"], i["n/pair_right"])})
        out = Pair(pair.left - pair.right, pair.left * pair.right)
        A.output_tensors("n", {"out": out}, export_with=b)
        return {"n/out_left": out.left, "n/out_right": out.right}

    return step


@dataclass
class Reading:
    """A dataclass as a port."""

    value: Tensor
    scale: Tensor


@pattern({"n/r_value": (3,), "n/r_scale": (3,)})
def dataclasses_as_ports(b: str) -> Step:
    """Fields become ports."""

    def step(i: Values) -> Values:
        r = A.input_tensors("n", {"r": Reading(i["n/r_value"], i["n/r_scale"])})
        y = r.value * r.scale
        A.output_tensors("n", {"y": y}, export_with=b)
        return {"n/y": y}

    return step


INNER = ("mul", "t", "input", "output", "add", "x", "linear", "val_0")


@pattern({f"n/{name}": (2,) for name in INNER})
def names_of_inner_values(b: str) -> Step:
    """Port names that an exporter may give to values of its own."""

    def step(i: Values) -> Values:
        got = A.input_tensors("n", {name: i[f"n/{name}"] for name in INNER})
        out = {f"{name}_of_it": v * 2.0 + k + got[0] * got[1] for k, (name, v) in enumerate(zip(INNER, got))}  # noqa: B905
        A.output_tensors("n", out, export_with=b)
        return {f"n/{name}": v for name, v in out.items()}

    return step


DATASET = ("observation.state", "joint-pos", "class", "two words", "1st", "größe", "self")


@pattern({f"n/{name}": (2,) for name in DATASET})
def names_of_datasets(b: str) -> Step:
    """Names that are no Python identifiers."""

    def step(i: Values) -> Values:
        got = A.input_tensors("n", {name: i[f"n/{name}"] for name in DATASET})
        out = {f"{name}.out": v * 2.0 + k for k, (name, v) in enumerate(zip(DATASET, got))}  # noqa: B905
        A.output_tensors("n", out, export_with=b)
        return {f"n/{name}": v for name, v in out.items()}

    return step


@pattern({"my node.v2/x": (3,)})
def names_of_nodes(b: str) -> Step:
    """A node's name is its file's name."""

    def step(i: Values) -> Values:
        x = A.input_tensors("my node.v2", {"x": i["my node.v2/x"]})
        y = torch.tanh(x) * 2.0
        A.output_tensors("my node.v2", {"y": y}, export_with=b)
        return {"my node.v2/y": y}

    return step


@pattern({"n/x": (3,), "n/y": (3,)})
def one_name_on_both_sides(b: str) -> Step:
    """An input and an output of the same name: ONNX files call them ``x_in`` and ``x_out``."""

    def step(i: Values) -> Values:
        x, y = A.input_tensors("n", {"x": i["n/x"], "y": i["n/y"]})
        out = x * 2.0 + y
        A.output_tensors("n", {"x": out}, export_with=b)
        return {"n/x": out}

    return step


@pattern({"n/x": (2, 3)})
def pass_through(b: str) -> Step:
    """An input that is an output as it is, beside a computed one."""

    def step(i: Values) -> Values:
        x = A.input_tensors("n", {"x": i["n/x"]})
        y = x.exp()
        A.output_tensors("n", {"same": x, "y": y}, export_with=b)
        return {"n/same": x, "n/y": y}

    return step


@pattern({"n/x": (2, 3)})
def identity_node(b: str) -> Step:
    """A node that only hands on."""

    def step(i: Values) -> Values:
        x = A.input_tensors("n", {"x": i["n/x"]})
        A.output_tensors("n", {"same": x}, export_with=b)
        return {"n/same": x}

    return step


@pattern({"n/x": (2, 3)})
def two_names_for_a_value(b: str) -> Step:
    """One value under two names, one of which is read by another node."""

    def step(i: Values) -> Values:
        x = A.input_tensors("n", {"x": i["n/x"]})
        y = x.sin()
        A.output_tensors("n", {"once": y, "again": y}, export_with=b)
        z = A.input_tensors("m", {"z": y})
        w = z + 1.0
        A.output_tensors("m", {"w": w}, export_with=b)
        return {"n/again": y, "m/w": w}

    return step


@pattern({"n/x": (2, 3)})
def outputs_that_share_memory(b: str) -> Step:
    """Rows, transposed and flattened views of one value."""

    def step(i: Values) -> Values:
        x = A.input_tensors("n", {"x": i["n/x"]})
        y = x * 2.0
        out = {"y": y, "row": y[0], "turned": y.T, "flat": y.view(-1), "column": y[:, 1:2]}
        A.output_tensors("n", out, export_with=b)
        return {f"n/{k}": v for k, v in out.items()}

    return step


@pattern({"n/s": (), "n/x": (3,)})
def scalars(b: str) -> Step:
    """Tensors without dimensions."""

    def step(i: Values) -> Values:
        s, x = A.input_tensors("n", {"s": i["n/s"], "x": i["n/x"]})
        out = {"half": s * 0.5, "total": (x * s).sum()}
        A.output_tensors("n", out, export_with=b)
        return {f"n/{k}": v for k, v in out.items()}

    return step


@pattern({"n/e": (0, 3), "n/x": (2, 3)})
def empty_tensors(b: str) -> Step:
    """A port without elements."""

    def step(i: Values) -> Values:
        e, x = A.input_tensors("n", {"e": i["n/e"], "x": i["n/x"]})
        out = {"none": e * 2.0, "joined": torch.cat([e, x])}
        A.output_tensors("n", out, export_with=b)
        return {f"n/{k}": v for k, v in out.items()}

    return step


DTYPES = ("float64", "float32", "float16", "int8", "int16", "int32", "int64", "uint8", "bool")


@pattern({f"n/{d}": ((4,), d) for d in DTYPES})
def dtypes(b: str) -> Step:
    """Every dtype that both have at ports."""

    def step(i: Values) -> Values:
        got = dict(zip(DTYPES, A.input_tensors("n", {d: i[f"n/{d}"] for d in DTYPES})))  # noqa: B905
        out = {f"{d}_out": v.logical_not() if d == "bool" else v + v for d, v in got.items()}
        A.output_tensors("n", out, export_with=b)
        return {f"n/{k}": v for k, v in out.items()}

    return step


@pattern({"n/x": ((4,), "bfloat16")}, backends=("jit", "pt2"))
def bfloat16(b: str) -> Step:
    """ONNX Runtime has no bfloat16 on the CPU."""

    def step(i: Values) -> Values:
        x = A.input_tensors("n", {"x": i["n/x"]})
        y = x * 2
        A.output_tensors("n", {"y": y}, export_with=b)
        return {"n/y": y}

    return step


@pattern({"n/x": (2, 3), "n/k": ((2,), "int64")})
def arrays(b: str) -> Step:
    """NumPy on both sides of a node."""

    def step(i: Values) -> Values:
        x, k = A.input_tensors("n", {"x": i["n/x"].numpy(), "k": i["n/k"].numpy()})
        y = np.clip(x * 2.0, -1.5, 1.5) + np.expand_dims(k, 1)
        top = np.max(x, axis=1)
        A.output_tensors("n", {"y": y.astype(np.float32), "top": top}, export_with=b)
        return {"n/y": torch.as_tensor(np.asarray(y.astype(np.float32))), "n/top": torch.as_tensor(np.asarray(top))}

    return step


@pattern({"n/a": (3,), "n/b": (3,), "n/c": (3,)})
def ports_declared_one_by_one(b: str) -> Step:
    """Inputs declared from several places, in the middle of the computation."""

    def step(i: Values) -> Values:
        a = A.input_tensors("n", {"a": i["n/a"]})
        y = a * 2.0
        c = A.input_tensors("n", {"b": i["n/b"]})
        y = y + c
        y = y * A.input_tensors("n", {"c": i["n/c"]})
        A.output_tensors("n", {"y": y}, export_with=b)
        return {"n/y": y}

    return step


@pattern({"n/x": (3,)})
def unused_inputs(b: str) -> Step:
    """An input that no output depends on is left out."""

    def step(i: Values) -> Values:
        x, _ = A.input_tensors("n", {"x": i["n/x"], "unused": i["n/x"] + 1.0})
        y = x.abs()
        A.output_tensors("n", {"y": y}, export_with=b)
        return {"n/y": y}

    return step


@pattern({"n/a": (3,), "n/b": (3,)})
def one_tensor_on_two_inputs(b: str, directory: Path | None = None) -> Step:
    """While it is traced, both ports get the same tensor; the bundle is given different ones."""
    traced = directory is not None

    def step(i: Values) -> Values:
        x, y = A.input_tensors("n", {"a": i["n/a"], "b": i["n/a"] if traced else i["n/b"]})
        o = x * 2.0 - y * y
        A.output_tensors("n", {"o": o}, export_with=b)
        return {"n/o": o}

    return step


@pattern({"n/x": (3,)})
def one_output_on_two_inputs(b: str) -> Step:
    """Two ports of a node fed by one output."""

    def step(i: Values) -> Values:
        x = A.input_tensors("n", {"x": i["n/x"]})
        y = x.sin()
        A.output_tensors("n", {"y": y}, export_with=b)
        p, q = A.input_tensors("m", {"p": y, "q": y})
        o = p * 2.0 + q * q
        A.output_tensors("m", {"o": o}, export_with=b)
        return {"m/o": o}

    return step


@pattern({"n/x": (3,)})
def static_outputs(b: str) -> Step:
    """Constants beside a computed output."""
    gain, limit = torch.tensor([1.0, 2.0, 3.0]), torch.full((2,), 0.5)

    def step(i: Values) -> Values:
        x = A.input_tensors("n", {"x": i["n/x"]})
        y = x * 2.0
        A.output_tensors("n", {"y": y}, static_outputs={"kp": gain, "limit": limit}, export_with=b)
        return {"n/y": y, "n/kp": gain, "n/limit": limit}

    return step


@pattern({"n/x": (3,)})
def static_outputs_alone(b: str) -> Step:
    """A node of constants only, beside one that computes."""
    gain = torch.tensor([1.0, 2.0, 3.0])

    def step(i: Values) -> Values:
        A.input_tensors("gains", {})
        A.output_tensors("gains", {}, static_outputs={"kp": gain}, export_with=b)
        x = A.input_tensors("n", {"x": i["n/x"]})
        y = x * 2.0
        A.output_tensors("n", {"y": y}, export_with=b)
        return {"n/y": y, "gains/kp": gain}

    return step


@pattern({"n/x": (3,), "m/x": (3,)})
def static_outputs_read_by_a_node(b: str) -> Step:
    """A constant of one node that another declares as its input."""
    gain = torch.tensor([1.0, 2.0, 3.0])

    def step(i: Values) -> Values:
        x = A.input_tensors("n", {"x": i["n/x"]})
        y = x * 2.0
        A.output_tensors("n", {"y": y}, static_outputs={"kp": gain}, export_with=b)
        z, kp = A.input_tensors("m", {"x": i["m/x"], "kp": gain})
        w = z * kp
        A.output_tensors("m", {"w": w}, export_with=b)
        return {"n/y": y, "m/w": w}

    return step


@pattern(
    {"n/jp": (1, 3), "n/jv": (1, 3), "n/g": (1,)},
    configs=lambda: GraphConfigs(frequency=50, extra={"runtime": "isaac", "skip-first-run": True}),
)
def semantics(b: str) -> Step:
    """Kinds, element names, a temporal axis, further facts, a static output with a kind, facts about the graph."""

    def step(i: Values) -> Values:
        jp, jv, g = A.input_tensors(
            "n",
            [
                TensorSemantics(
                    "jp", i["n/jp"], kind=InputKindEnum.JOINT_POSITION, element_names=["a", "b", "c"],
                    extra={"units": "rad", "frame": "base", "isaaclab_connection": "state:robot:joint_pos"},
                ),
                TensorSemantics("jv", i["n/jv"], kind="custom/kind", element_names=[None, ["a", "b", "c"]]),
                TensorSemantics("g", i["n/g"], element_names=["z"]),
            ],
        )  # fmt: skip
        act = (jp + jv * g).repeat(4, 1)
        A.output_tensors(
            "n",
            TensorSemantics(
                "act", act, kind=OutputKindEnum.JOINT_TORQUES, element_names=[TemporalAxis(100), ["hip", "knee", "ankle"]]
            ),
            static_outputs=TensorSemantics("kp", torch.ones(3), kind=OutputKindEnum.KP),
            export_with=b,
        )
        return {"n/act": act, "n/kp": torch.ones(3)}

    return step


# -- edges and feedback ------------------------------------------------------------------------------------------------


@pattern({"first/a": (1, 3), "first/b": (1, 3)})
def chain(b: str) -> Step:
    """Three nodes in a row, with a network in the middle."""
    network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).eval()

    def step(i: Values) -> Values:
        x, y = A.input_tensors("first", {"a": i["first/a"], "b": i["first/b"]})
        mixed = torch.cat([x * 2.0, y - y.mean()], dim=-1)
        A.output_tensors("first", {"mixed": mixed}, export_with=b)
        score = network(A.input_tensors("second", {"features": mixed}))
        A.output_tensors("second", {"score": score}, export_with=b)
        chosen = torch.softmax(A.input_tensors("third", {"score": score}), dim=-1)
        A.output_tensors("third", {"chosen": chosen}, export_with=b)
        return {"third/chosen": chosen}

    return step


@pattern({"source/x": (5,), "right/gain": (5,)})
def fan_out(b: str) -> Step:
    """One output read by two nodes, which meet again; one of them has an input of its own."""

    def step(i: Values) -> Values:
        shared = torch.sin(A.input_tensors("source", {"x": i["source/x"]}))
        A.output_tensors("source", {"shared": shared}, export_with=b)
        left = A.input_tensors("left", {"value": shared}).cumsum(dim=0)
        A.output_tensors("left", {"sum": left}, export_with=b)
        right, gain = A.input_tensors("right", {"shared": shared, "gain": i["right/gain"]})
        right = right * gain
        A.output_tensors("right", {"scaled": right}, export_with=b)
        left, right = A.input_tensors("join", {"left": left, "right": right})
        joined = torch.maximum(left, right)
        A.output_tensors("join", {"joined": joined}, export_with=b)
        return {"join/joined": joined}

    return step


@pattern({"n/x": (1, 4)}, passes=3)
def previous_action(b: str) -> Step:
    """The action is an input of the next step; a second name makes it an output for leapp 0.7.2 as well."""
    network = nn.Linear(6, 2).eval()
    action = torch.zeros(1, 2)

    def step(i: Values) -> Values:
        nonlocal action
        x, before = A.input_tensors("n", {"x": i["n/x"], "before": action})
        action = torch.tanh(network(torch.cat([x, before], -1)))
        A.output_tensors("n", {"action": action, "command": action}, export_with=b)
        return {"n/command": action}

    return step


@pattern({"act/observed": (3,)}, passes=3)
def feedback_over_two_nodes(b: str) -> Step:
    """A memory that a later node writes and two nodes read in the next pass."""
    memory = torch.full((3,), 0.25)

    def step(i: Values) -> Values:
        nonlocal memory
        observed, before = A.input_tensors("act", {"observed": i["act/observed"], "before": memory})
        context = torch.tanh(observed + 0.5 * before)
        action = context.clamp(-0.5, 0.5) * 2.0
        A.output_tensors("act", {"context": context, "action": action}, export_with=b)
        context, previous = A.input_tensors("remember", {"context": context, "previous": memory})
        memory = 0.8 * previous + 0.2 * context
        A.output_tensors("remember", {"memory": memory}, export_with=b)
        return {"act/action": action}

    return step


@pattern({"ring_0/x": (2,)}, passes=3, reader=AT_ONCE)
def feedback_over_many_nodes(b: str) -> Step:
    """Four nodes, each of which reads what it and its neighbour left."""
    carried = [torch.zeros(2) for _ in range(4)]

    def step(i: Values) -> Values:
        nonlocal carried
        new = []
        forward = i["ring_0/x"]
        for k in range(4):
            given = {"f" if k else "x": forward, "own": carried[k], "ahead": carried[(k + 1) % 4]}
            f, own, ahead = A.input_tensors(f"ring_{k}", given)
            v = torch.tanh(f + 0.5 * own - 0.3 * ahead)
            shown = v * 2.0
            A.output_tensors(f"ring_{k}", {"v": v, "shown": shown}, export_with=b)
            new.append(v)
            forward = v
        carried = new
        return {"ring_3/shown": shown}

    return step


@pattern({"n/x": (2,)}, passes=3, reader=AT_ONCE)
def edge_of_the_pass_before(b: str) -> Step:
    """An output read in its own pass and in the next."""
    before = torch.zeros(2)

    def step(i: Values) -> Values:
        nonlocal before
        y = A.input_tensors("n", {"x": i["n/x"]}) * 2.0
        A.output_tensors("n", {"y": y}, export_with=b)
        now, old = A.input_tensors("m", {"now": y, "old": before})
        d = now - old
        A.output_tensors("m", {"d": d}, export_with=b)
        before = y
        return {"m/d": d}

    return step


COPIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "clone": lambda t, _: t.clone(), "detach": lambda t, _: t.detach(), "contiguous": lambda t, _: t.contiguous(),
    "cpu": lambda t, _: t.cpu(), "to": lambda t, _: t.to("cpu"), "as_tensor": lambda t, _: torch.as_tensor(t),
    "copied": lambda t, buffer: buffer.copy_(t), "filled": lambda t, buffer: _filled(buffer, t),
}  # fmt: skip


def _filled(buffer: Tensor, t: Tensor) -> Tensor:
    buffer[:] = t
    return buffer


@pattern({"n/x": (2,), "m/late": (2,)})
def copies_between_nodes(b: str) -> Step:
    """A copy of an output is that output."""

    def step(i: Values) -> Values:
        y = A.input_tensors("n", {"x": i["n/x"]}) * 2.0
        A.output_tensors("n", {"y": y}, export_with=b)
        z = A.input_tensors("m", {"late": i["m/late"]})
        A.output_tensors("m", {"z": z + 1.0}, export_with=b)
        outs = {}
        for name, copied in COPIES.items():
            got = A.input_tensors(f"of_{name}", {"y": copied(y, torch.zeros(2))})
            out = got + 1.0
            A.output_tensors(f"of_{name}", {"o": out}, export_with=b)
            outs[f"of_{name}/o"] = out
        return {"m/z": z + 1.0, **outs}

    return step


@pattern({"n/x": (3,)})
def mirrored_tags(b: str) -> Step:
    """A copy made out of sight, which the program vouches for."""
    held = torch.zeros(3)

    def step(i: Values) -> Values:
        y = A.input_tensors("n", {"x": i["n/x"]}) * 2.0
        A.output_tensors("n", {"y": y}, export_with=b)
        # In memory that only the copy knows.
        copy = torch.frombuffer(bytearray(y.detach().contiguous().numpy().tobytes()), dtype=torch.float32)
        z = A.input_tensors("m", {"z": A.mirror_leapp_tags(y, copy)})
        w = z.cumsum(0) + held
        A.output_tensors("m", {"w": w}, export_with=b)
        return {"m/w": w}

    return step


@pattern({"encode/observed": (1, 5)}, backends=("mixed",))
def mixed_backends(b: str) -> Step:
    """ONNX, TorchScript and exported programs in turn, an integer edge, a loop around all of them."""
    network = nn.Linear(5, 4).eval()
    previous = torch.zeros(1, 4)

    def step(i: Values) -> Values:
        nonlocal previous
        observed, before = A.input_tensors("encode", {"observed": i["encode/observed"], "previous": previous})
        logits = network(observed) + 0.5 * before
        A.output_tensors("encode", {"logits": logits}, export_with="onnx")
        read = A.input_tensors("choose", {"logits": logits})
        index, smooth = read.argmax(dim=1), torch.softmax(read, dim=1)
        A.output_tensors("choose", {"index": index, "smooth": smooth}, export_with="jit")
        index, smooth = A.input_tensors("apply", {"index": index, "smooth": smooth})
        picked = smooth.gather(1, index.unsqueeze(1))
        previous = smooth * 2.0 - 1.0
        A.output_tensors("apply", {"picked": picked, "next": previous}, export_with="pt2")
        return {"apply/picked": picked}

    return step


SPELLINGS = ("jit", "jit-script", "jit-trace", "onnx", "onnx-dynamo", "onnx-torchscript", "pt2", "exported-program")


@pattern({"n/x": (2, 3)}, backends=SPELLINGS)
def names_of_backends(b: str) -> Step:
    """Every spelling of ``export_with``."""
    network = nn.Sequential(nn.Linear(3, 4), nn.ELU(), nn.Linear(4, 2)).eval()

    def step(i: Values) -> Values:
        y = network(A.input_tensors("n", {"x": i["n/x"]}))
        A.output_tensors("n", {"y": y}, export_with=b)
        return {"n/y": y}

    return step


# -- state -------------------------------------------------------------------------------------------------------------


@pattern({"n/newest": (2,)}, passes=3)
def states(b: str) -> Step:
    """A history window and a counter."""
    window, count = torch.zeros(4, 2), torch.zeros(1, dtype=torch.int64)

    def step(i: Values) -> Values:
        nonlocal window, count
        newest = A.input_tensors("n", {"newest": i["n/newest"]})
        old, number = A.state_tensors("n", {"window": window, "count": count})
        window = torch.cat([old[1:], newest.unsqueeze(0)])
        count = number + 1
        A.update_state("n", {"window": window, "count": count})
        average = window.mean(dim=0) + 0.001 * count
        A.output_tensors("n", {"average": average}, export_with=b)
        return {"n/average": average}

    return step


@pattern({"n/o": (1, 3), "n/command": (1, 3)}, passes=3, mode="inference_mode")
def states_between_inputs(b: str) -> Step:
    """As Isaac Lab does it: a rolled history between two inputs, in inference mode."""
    history = torch.zeros(1, 4, 3)

    def step(i: Values) -> Values:
        nonlocal history
        o = A.input_tensors("n", {"o": i["n/o"]})
        old = A.state_tensors("n", {"hist": history})
        new = torch.roll(old, shifts=-1, dims=1)
        new[:, -1] = o
        history = A.update_state("n", {"hist": new})
        command = A.input_tensors("n", {"command": i["n/command"]})
        y = history.flatten(1).sum(1, keepdim=True) + command
        A.output_tensors("n", {"y": y}, export_with=b)
        return {"n/y": y}

    return step


@pattern({"n/x": (1, 3)}, passes=3)
def state_that_is_an_output(b: str) -> Step:
    """One value as the new state and as an output, read by another node too."""
    h = torch.full((1, 3), 0.5)

    def step(i: Values) -> Values:
        nonlocal h
        x = A.input_tensors("n", {"x": i["n/x"]})
        h = torch.tanh(A.state_tensors("n", {"h": h}) * 0.5 + x)
        A.update_state("n", {"h": h * 3.0})
        A.update_state("n", {"h": h})
        A.output_tensors("n", {"y": h}, export_with=b)
        w = A.input_tensors("m", {"y": h}) - 1.0
        A.output_tensors("m", {"w": w}, export_with=b)
        return {"m/w": w}

    return step


@pattern({"n/x": (3,), "n/h": (3,)}, passes=1)
def state_that_is_never_updated(b: str) -> Step:
    """It is an input of the graph."""

    def step(i: Values) -> Values:
        x = A.input_tensors("n", {"x": i["n/x"]})
        h = A.state_tensors("n", {"h": i["n/h"]})
        y = x * h
        A.output_tensors("n", {"y": y}, export_with=b)
        return {"n/y": y}

    return step


class Recurrent(nn.Module):
    """A GRU cell with its memory and a constant scale in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(4, 6), nn.Linear(6, 4)
        self.register_buffer("scale", torch.tensor([2.0, 0.5, 1.0, 3.0]))
        self.register_buffer("memory", torch.zeros(1, 6))

    def forward(self, x: Tensor) -> Tensor:
        """One step."""
        self.memory = self.cell(x, self.memory)
        return self.head(self.memory) * self.scale


class Lstm(nn.Module):
    """The two memories of an LSTM in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4)
        self.register_buffer("hx", torch.zeros(1, 1, 4))
        self.register_buffer("cx", torch.zeros(1, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        """One step."""
        y, (self.hx, self.cx) = self.lstm(x.unsqueeze(0), (self.hx, self.cx))
        return y.squeeze(0)


class Outer(nn.Module):
    """Buffers of an inner module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Recurrent()

    def forward(self, x: Tensor) -> Tensor:
        """One step."""
        return self.inner(x) + 1.0


class InPlace(nn.Module):
    """A buffer that is written to, not assigned."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        """One step."""
        self.total.mul_(0.9).add_(x)
        return self.total * 2.0


def _modules(b: str, *modules: nn.Module, names: list[str] | None = None) -> Step:
    def step(i: Values) -> Values:
        x = A.input_tensors("n", {"x": i["n/x"]})
        for module in modules:
            A.module("n", module, names) if names else A.module("n", module)
        y = modules[0](x)
        for module in modules[1:]:
            y = y + module(x)
        A.output_tensors("n", {"y": y}, export_with=b)
        return {"n/y": y}

    return step


@pattern({"n/x": (1, 4)}, passes=1, backends=(*ALL, "onnx-torchscript"))
def module_buffers(b: str) -> Step:
    """Memory kept in a buffer that is assigned anew, in one pass."""
    return _modules(b, Recurrent().eval())


@pattern({"n/x": (1, 4)}, passes=1)
def tuples_of_module_buffers(b: str) -> Step:
    """The memories of an LSTM, assigned together."""
    return _modules(b, Lstm().eval())


@pattern({"n/x": (1, 4)}, passes=3)
def module_buffers_in_a_loop(b: str) -> Step:
    """The same in three passes."""
    return _modules(b, Recurrent().eval())


@pattern({"n/x": (1, 4)}, passes=1)
def buffers_of_inner_modules(b: str) -> Step:
    """Ports are called after the path to the buffer."""
    return _modules(b, Outer().eval())


@pattern({"n/x": (1, 4)}, passes=1)
def some_module_buffers(b: str) -> Step:
    """``buffer_names`` says which."""
    net = nn.Module()
    net.register_buffer("last", torch.zeros(1, 4))
    net.register_buffer("fixed", torch.ones(1, 4))

    def step(i: Values) -> Values:
        x = A.input_tensors("n", {"x": i["n/x"]})
        A.module("n", net, buffer_names=["last"])
        y = x - net.last + net.fixed
        net.last = x * 1.0
        A.output_tensors("n", {"y": y}, export_with=b)
        return {"n/y": y}

    return step


@pattern({"n/x": (1, 4)}, passes=1)
def two_modules_in_a_node(b: str) -> Step:
    """Each with a memory of its own."""
    return _modules(b, Recurrent().eval(), Recurrent().eval())


@pattern({"n/x": (1, 4)}, passes=1)
def module_buffers_in_place(b: str) -> Step:
    """Memory that is written to."""
    return _modules(b, InPlace())


@pattern({"n/x": (3,)})
def scratch_buffers(b: str) -> Step:
    """Registered memory that every pass begins anew."""

    def step(i: Values) -> Values:
        x = A.input_tensors("n", {"x": i["n/x"]})
        s = A.register_buffer("n", {"scratch": torch.ones(3)})
        s[:2] = x[1:]
        s *= 2.0
        y = s + x
        A.output_tensors("n", {"y": y}, export_with=b)
        return {"n/y": y}

    return step


@pattern({"n/x": (3,)}, passes=3)
def registered_memory(b: str) -> Step:
    """Registered memory that lives on from pass to pass."""
    total = torch.zeros(3)

    def step(i: Values) -> Values:
        x = A.input_tensors("n", {"x": i["n/x"]})
        t = A.register_buffer("n", {"total": total})
        t += x
        y = t * 2.0
        A.output_tensors("n", {"y": y}, export_with=b)
        return {"n/y": y}

    return step


@pattern({"n/x": (3,)})
def plain_buffers(b: str) -> Step:
    """A pre-allocated tensor that every pass fills."""
    obs = torch.zeros(6)

    def step(i: Values) -> Values:
        x = A.input_tensors("n", {"x": i["n/x"]})
        obs = torch.zeros(6)
        obs[:3] = x
        obs[3:] = x * 2.0
        y = obs.tanh()
        A.output_tensors("n", {"y": y}, export_with=b)
        return {"n/y": y}

    assert not obs.any()
    return step


# -- decorated functions -----------------------------------------------------------------------------------------------


class Kit:
    """Methods of all kinds."""

    def __init__(self, backend: str) -> None:
        self.gain = 0.5
        self.bound = A.method(node_name="bound", export_with=backend)(self.plain)

    def plain(self, error: Tensor, *more: Tensor, scale: Tensor | None = None) -> Tensor:
        """Positional, further and keyword arguments."""
        command = self.gain * error
        for m in more:
            command = command + m
        if scale is not None:
            command = command * scale
        return command


@pattern({"fun/x": (3,), "bound/arg_0": (3,), "bound/scale": (3,), "nested/d_u": (3,), "nested/d_v": (3,)})
def methods(b: str) -> Step:
    """Functions, methods, static methods, ``forward``, lambdas; nested arguments, defaults, several outputs."""

    @A.method(node_name="fun", export_with=b)
    def fun(x: Tensor, times: int = 2) -> Tensor:
        moved = x * times
        return moved

    @A.method(node_name="pair", export_with=b)
    def pair(x: Tensor) -> tuple[Tensor, Tensor]:
        low, high = x - 1.0, x + 1.0
        return low, high

    class Static:
        @staticmethod
        @A.method(node_name="static", export_with=b)
        def double(x: Tensor) -> Tensor:
            return x * 2.0

        @A.method(node_name="own", export_with=b)
        def negate(self, x: Tensor) -> Tensor:
            flipped = -x
            return flipped

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 3)

        @A.method(node_name="forward", export_with=b)
        def forward(self, x: Tensor) -> Tensor:
            out = torch.tanh(self.lin(x))
            return out

    @A.method(node_name="nested", export_with=b)
    def nested(d: Values, y: Tensor) -> Tensor:
        total = d["u"] * d["v"] + y
        return total

    net, kit, other = Net(), Kit(b), Static()

    def step(i: Values) -> Values:
        low, high = pair(fun(i["fun/x"]))
        z = other.negate(Static.double(low))
        command = kit.bound(net(z), i["bound/arg_0"], scale=i["bound/scale"])
        total = nested({"u": i["nested/d_u"], "v": i["nested/d_v"]}, high)
        return {"bound/command": command, "nested/total": total}

    return step


@pattern({"counted/x": (3,)}, passes=3)
def state_in_a_method(b: str) -> Step:
    """A decorated function declares its state itself."""
    h = torch.zeros(3)

    @A.method(node_name="counted", export_with=b)
    def counted(x: Tensor) -> Tensor:
        nonlocal h
        old = A.state_tensors("counted", {"h": h})
        h = old * 0.5 + x
        A.update_state("counted", {"h": h})
        y = h + 1.0
        return y

    def step(i: Values) -> Values:
        return {"counted/y": counted(i["counted/x"])}

    return step


# -- nodes without a trace ---------------------------------------------------------------------------------------------


@pattern({"n/x": (3,)}, backends=("pt", "onnx-file", "pt2-file"))
def models_of_ones_own(b: str, directory: Path | None = None, copy: bool = False) -> Step:
    """A model file that the user brings, referenced where it is."""
    network = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).eval()
    params: dict[str, Any] = {}
    if directory is not None:
        path = directory / {"pt": "own.pt", "onnx-file": "own.onnx", "pt2-file": "own.pt2"}[b]
        _save_own(network, path)
        params = {"model_path": str(path), "copy_original_model": copy}

    def step(i: Values) -> Values:
        x = A.input_tensors("n", {"x": i["n/x"]})
        y = network(x)
        A.output_tensors("n", {"y": y}, export_with=None, backend_params=params)
        return {"n/y": y}

    return step


@pattern({"n/x": (3,)}, backends=("pt", "onnx-file", "pt2-file"))
def copied_models_of_ones_own(b: str, directory: Path | None = None) -> Step:
    """The same, copied into the bundle."""
    return models_of_ones_own(b, directory, copy=True)


def _save_own(network: nn.Module, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".pt":
        torch.jit.trace(network, torch.zeros(3)).save(str(path))
    elif path.suffix == ".pt2":
        program = torch.export.export(network, (torch.zeros(3),))
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # it names files of the machine, and the bundles are kept
        torch.export.save(program, str(path))
    else:
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        linear: Any = network[0]  # type: ignore[index]
        made = helper.make_graph(
            [
                helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "bias"], ["s"]),
                helper.make_node("Tanh", ["s"], ["y"]),
            ],
            "own",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
            [
                numpy_helper.from_array(linear.weight.detach().numpy().T.copy(), "w"),
                numpy_helper.from_array(linear.bias.detach().numpy(), "bias"),
            ],
        )  # fmt: skip
        onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))


@pattern({"a/x": (2,)}, non_traced=["a"])
def nodes_without_a_model(b: str) -> Step:
    """A node that is described and wired but not exported: nobody can run the whole."""

    def step(i: Values) -> Values:
        x = A.input_tensors("a", {"x": i["a/x"]})
        y = x * 2.0
        A.output_tensors("a", {"y": y}, export_with=b)
        z = A.input_tensors("b", {"y": y}) + 1.0
        A.output_tensors("b", {"z": z}, export_with=b)
        return {"b/z": z}

    return step
