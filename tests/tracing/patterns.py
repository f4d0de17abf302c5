"""The table: one program for each way people declare ports, state, feedback and nodes."""

from __future__ import annotations

import copy
import functools
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from leapp import InputKindEnum, OutputKindEnum, TensorSemantics, annotate
from tests.tracing.loops import Step, Tensor, Values, pattern

A = annotate


# -- ports -------------------------------------------------------------------------------------------------------------

ODD = ["observation.state", "joint-pos", "class", "self", "two words", "1st", "größe", "mul", "t", "input", "x:0", "o'k", "%a"]


ALSO = ["action.joint", "out-1", "for", "None", "a b", "2nd", "größe²", "add", "y", "output", "y:0", "it's", "#b"]


@pattern({f"odd names.v2/{n}": (2,) for n in ODD})
def odd_names(b: str) -> Step:
    def step(i: Values) -> Values:
        got = A.input_tensors("odd names.v2", {n: i[f"odd names.v2/{n}"] for n in ODD})
        out = {n: v * 2.0 + k for k, (n, v) in enumerate(zip(ALSO, got, strict=True))}
        out["add"] = got[7] * got[8] * got[11]
        A.output_tensors("odd names.v2", out, export_with=b)
        return {f"odd names.v2/{n}": v for n, v in out.items()}

    return step


@pattern({"first/x": (2, 3)})
def constants_that_are_cast(b: str) -> Step:
    """A cast that changes nothing gives the plain tensor itself: it stays one, for the next node too."""
    scale, offset = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 0.25, 0.125])

    def step(i: Values) -> Values:
        x = A.input_tensors("first", {"x": i["first/x"]})
        y = x * scale.to(x) + offset.type_as(x)
        A.output_tensors("first", {"y": y}, export_with=b)
        h = A.input_tensors("second", {"y": y})
        z = h * scale.to(h) - offset.type_as(h)
        A.output_tensors("second", {"z": z}, export_with=b)
        return {"second/z": z}

    return step


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclass
class Reading:
    value: Tensor
    valid: Tensor
    label: str = "imu"


@pattern(
    {
        "nested/s_p": (3,), "nested/s_l_0": (3,), "nested/s_l_1_0": (3,), "nested/pair_left": (3,), "nested/pair_right": (3,),
        "nested/r_value": (3,), "nested/r_valid": lambda: torch.rand(3) > 0.5, "nested/rows_0_a": (3,), "nested/rows_1_a": (3,),
        "nested/od_k": (3,),
    }
)  # fmt: skip
def nested(b: str) -> Step:
    def step(i: Values) -> Values:
        v = {k.split("/")[1]: t for k, t in i.items()}
        s, pair, r, rows, od, flag = A.input_tensors(
            "nested",
            {
                "s": {"p": v["s_p"], "l": [v["s_l_0"], (v["s_l_1_0"],)]},
                "pair": Pair(v["pair_left"], v["pair_right"]),
                "r": Reading(v["r_value"], v["r_valid"]),
                "rows": [{"a": v["rows_0_a"]}, {"a": v["rows_1_a"]}],
                "od": OrderedDict(k=v["od_k"]),
                "flag": True,
            },
        )
        assert isinstance(pair, Pair) and isinstance(r, Reading) and r.label == "imu" and isinstance(s["l"][1], tuple) and flag
        out = Pair(pair.left - pair.right, torch.where(r.valid, r.value, s["p"]))
        listed = [{"b": rows[0]["a"] * s["l"][0]}, {"b": rows[1]["a"] * s["l"][1][0] + od["k"]}]
        back = A.output_tensors("nested", {"out": out, "listed": listed}, export_with=b)
        assert back[0] is out
        return {
            "nested/out_left": out.left, "nested/out_right": out.right,
            "nested/listed_0_b": listed[0]["b"], "nested/listed_1_b": listed[1]["b"],
        }  # fmt: skip

    return step


@pattern({"same/a": (3,), "same/b": (3,), "other/a": (3,)})
def same_tensor_twice(b: str) -> Step:
    """While it is traced, all ports get one tensor; the bundle is given different ones."""
    traced = 0

    def step(i: Values) -> Values:
        nonlocal traced
        traced += 1
        a = i["same/a"]
        c, d = (a, a) if traced <= 2 else (i["same/b"], i["other/a"])
        x, y = A.input_tensors("same", {"a": a, "b": c})
        # The other node is open at the same time.
        z = A.input_tensors("other", {"a": d})
        o, p = x * 2.0 - y, z + 1.0
        A.output_tensors("same", {"o": o}, export_with=b)
        A.output_tensors("other", {"p": p}, export_with=b)
        return {"same/o": o, "other/p": p}

    if not A._session:
        traced = 2

    return step


@pattern({"fan_src/x": (3,)})
def one_output_on_two_inputs(b: str) -> Step:
    def step(i: Values) -> Values:
        x = A.input_tensors("fan_src", {"x": i["fan_src/x"]})
        y = A.output_tensors("fan_src", {"y": x.sin()}, export_with=b)
        p, q = A.input_tensors("fan_dst", {"p": y, "q": y})
        o = p * 2.0 + q * q
        A.output_tensors("fan_dst", {"o": o}, export_with=b)
        return {"fan_dst/o": o}

    return step


@pattern({"alias/x": (2, 3), "alias/s": (), "alias/e": (0, 3), "alias/k": lambda: torch.randint(-5, 5, (3,))})
def names_for_one_value(b: str) -> Step:
    def step(i: Values) -> Values:
        x, s, e, k = A.input_tensors("alias", {n: i[f"alias/{n}"] for n in "xsek"})
        y = x * s
        out = {
            "once": y, "again": y, "through": x, "part": y[0], "turned": y.T, "flat": y.view(-1), "scalar": s + 1.0,
            "empty": e * 2.0, "count": k // 2, "positive": k > 0, "integer": k,
        }  # fmt: skip
        A.output_tensors("alias", out, export_with=b)
        return {f"alias/{n}": v for n, v in out.items()}

    return step


@pattern({"in_place/x": (2, 3)})
def written_outputs(b: str) -> Step:
    def step(i: Values) -> Values:
        x = A.input_tensors("in_place", {"x": i["in_place/x"]})
        y = x * 1.0
        row = y[0]
        row += 1.0
        x[1] = 0.0
        A.output_tensors("in_place", {"y": y, "row": row, "x_after": x}, export_with=b)
        return {"in_place/y": y, "in_place/row": row, "in_place/x_after": x}

    return step


@pattern({"st_use/x": (3,)})
def static_outputs(b: str) -> Step:
    gain, bias = torch.tensor([1.0, 2.0, 3.0]), torch.ones(3)

    def step(i: Values) -> Values:
        A.input_tensors("st_only", {})
        A.output_tensors(
            "st_only", {}, static_outputs=[TensorSemantics("kp", gain, kind=OutputKindEnum.KP), TensorSemantics("bias", bias)],
            export_with=b,
        )  # fmt: skip
        x, g, o = A.input_tensors("st_use", {"x": i["st_use/x"], "gain": gain, "offset": bias.clone()})
        y = x * g + o + bias
        A.output_tensors("st_use", {"y": y}, export_with=b)
        return {"st_use/y": y, "st_only/kp": gain}

    return step


# -- what a graph returns ----------------------------------------------------------------------------------------------


@pattern({"loop_obs/o": (1, 4)}, passes=3)
def previous_action(b: str) -> Step:
    net = nn.Linear(6, 2)
    action = torch.zeros(1, 2)

    def step(i: Values) -> Values:
        nonlocal action
        o, prev = A.input_tensors("loop_obs", {"o": i["loop_obs/o"], "prev": action})
        obs = torch.cat([o, prev], -1)
        A.output_tensors("loop_obs", {"obs": obs}, export_with=b)
        obs = A.input_tensors("loop_act", {"obs": obs})
        action = torch.tanh(net(obs))
        A.output_tensors("loop_act", {"action": action}, export_with=b)
        return {"loop_act/action": action}

    return step


@pattern({"ask_a/x": (3,)}, passes=2)
def asked_outputs(b: str) -> Step:
    def step(i: Values) -> Values:
        x = A.input_tensors("ask_a", {"x": i["ask_a/x"]})
        y, z, w = A.output_tensors("ask_a", {"y": x + 1.0, "z": x + 2.0, "w": x + 3.0}, export_with=b, graph_outputs=["y"])
        y, z, w = A.input_tensors("ask_b", {"y": y, "z": z, "w": w})
        t = A.output_tensors("ask_b", [TensorSemantics("t", y * z * w, kind="target/joint/position")], export_with=b)
        t = A.input_tensors("ask_c", {"t": t})
        u = A.output_tensors("ask_c", {"u": t - 1.0}, export_with=b, graph_outputs=True)
        return {"ask_a/y": y, "ask_b/t": t, "ask_c/u": u}

    return step


# -- state -------------------------------------------------------------------------------------------------------------


@pattern({"st/x": (1, 3), "st/late": (1, 3)}, passes=3)
def states(b: str) -> Step:
    h, count, kept = torch.full((1, 3), 0.5), torch.zeros((), dtype=torch.int64), torch.ones(1, 3)

    def step(i: Values) -> Values:
        nonlocal h, count, kept
        A.input_tensors("st", {})
        hidden = A.state_tensors(
            "st", TensorSemantics("h", h, kind="state/hidden", element_names=["a", "b", "c"])
        )
        x = A.input_tensors("st", {"x": i["st/x"]})
        c, k = A.state_tensors("st", {"count": count, "kept": kept})
        late = A.input_tensors("st", {"late": i["st/late"]})
        A.update_state("st", {"h": hidden * 100.0})
        h = torch.tanh(hidden * 0.5 + x)
        assert A.update_state("st", {"h": h}) is h
        count, kept = A.update_state("st", {"count": c + 1, "kept": k})
        y = h + late * c + k
        A.output_tensors("st", {"y": y}, export_with=b)
        return {"st/y": y}

    return step


@pattern({"hist/x": (1, 3)}, passes=4, mode="inference_mode")
def history_that_begins_empty(b: str) -> Step:
    buffer: Tensor | None = None

    def step(i: Values) -> Values:
        nonlocal buffer
        x = A.input_tensors("hist", {"x": i["hist/x"]})
        scaled = x * 2.0
        if buffer is None:
            buffer = scaled.repeat(4, 1)
        else:
            buffer = A.state_tensors("hist", {"h": buffer})
            buffer = torch.cat([buffer[1:], scaled])
        buffer = A.update_state("hist", {"h": buffer})
        y = buffer.sum(0) + x
        A.output_tensors("hist", {"y": y}, export_with=b)
        return {"hist/y": y}

    # The first push is part of getting ready: the bundle starts from what it left.
    with torch.inference_mode():
        step({"hist/x": torch.randn(1, 3)})
    return step


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.lstm = nn.GRUCell(3, 4), nn.LSTM(3, 4)
        self.register_buffer("h", torch.zeros(1, 4))
        self.register_buffer("hx", torch.zeros(1, 1, 4))
        self.register_buffer("cx", torch.zeros(1, 1, 4))
        self.register_buffer("mean", torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x - self.mean
        self.h = self.gru(x, self.h)
        y, (self.hx, self.cx) = self.lstm(x.unsqueeze(0), (self.hx, self.cx))
        return y.squeeze(0) + self.h


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(1, 3))
        self.register_buffer("total", torch.ones(1, 3))
        self.register_buffer("window", torch.zeros(4, 3))
        self.register_buffer("ticks", torch.zeros((), dtype=torch.int64))
        self.register_buffer("skip", None)

    def forward(self, x: Tensor) -> Tensor:
        y = x - self.last
        self.last.copy_(x)
        self.total.mul_(0.9).add_(x)
        self.window[:-1] = self.window[1:].clone()
        self.window[-1:] = x
        self.ticks += 1
        return y + self.total + self.window.mean(0) * self.ticks


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([InPlace(), InPlace()])
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.cat([self.inner[1](self.inner[0](x)), x, -x]))


@pattern({"rec/x": (1, 3)}, passes=3)
def recurrent_module(b: str) -> Step:
    net = Recurrent().eval()

    def step(i: Values) -> Values:
        x = A.input_tensors("rec", {"x": i["rec/x"]})
        A.module("rec", net)
        y = net(x)
        A.output_tensors("rec", {"y": y}, export_with=b)
        assert type(net.h) is Tensor and list(net._buffers) == ["h", "hx", "cx", "mean"]
        return {"rec/y": y}

    return step


@pattern({"mods/x": (1, 3)}, passes=3)
def modules_in_place(b: str) -> Step:
    one, two = Outer().train(), InPlace()

    def step(i: Values) -> Values:
        x = A.input_tensors("mods", {"x": i["mods/x"]})
        A.module("mods", one)
        A.module("mods", two)
        kept = two.last
        y = one(x) + two(x)
        A.output_tensors("mods", {"y": y}, export_with=b)
        assert two.last is kept
        return {"mods/y": y}

    return step


@pattern({"sub/x": (1, 3)}, passes=2)
def some_buffers(b: str) -> Step:
    net = InPlace()
    with torch.no_grad():
        net.total.fill_(2.0)

    def step(i: Values) -> Values:
        x = A.input_tensors("sub", {"x": i["sub/x"]})
        A.module("sub", net, buffer_names=["last"])
        y = x - net.last + net.total
        net.last = x * 1.0
        A.output_tensors("sub", {"y": y}, export_with=b)
        return {"sub/y": y}

    return step


@pattern({"regs/x": (3,)}, passes=3)
def registered_buffers(b: str) -> Step:
    total, ring = torch.zeros(3), torch.zeros(2, 3)

    def step(i: Values) -> Values:
        x = A.input_tensors("regs", {"x": i["regs/x"]})
        t = A.register_buffer("regs", {"total": total})
        r, scratch = A.register_buffer("regs", [ring, torch.ones(3)])
        fixed = A.register_buffer("regs", torch.full((3,), 2.0))
        one = A.register_buffer("regs", [torch.ones(3)])
        assert isinstance(one, Tensor)
        t += x
        r[0] = r[1]
        r[1] = x
        scratch *= x
        y = t + r.sum(0) + scratch + fixed * one
        A.output_tensors("regs", {"y": y}, export_with=b)
        return {"regs/y": y}

    return step


@pattern({"reg1/x": (3,)}, passes=1)
def registered_once(b: str) -> Step:
    total = torch.zeros(3)

    def step(i: Values) -> Values:
        x = A.input_tensors("reg1", {"x": i["reg1/x"]})
        t = A.register_buffer("reg1", total)
        s = A.register_buffer("reg1", torch.zeros(3))
        t += x
        s += x
        A.output_tensors("reg1", {"y": t * 1.0, "s": s * 1.0}, export_with=b)
        return {"reg1/y": t * 1.0, "reg1/s": s * 1.0}

    return step


# -- feedback ----------------------------------------------------------------------------------------------------------

COPIES = {
    "clone": lambda t, _: t.clone(),
    "detach": lambda t, _: t.detach(),
    "contiguous": lambda t, _: t.contiguous(),
    "to": lambda t, _: t.to("cpu", torch.float32),
    "to_copy": lambda t, _: t.to(torch.float32, copy=True),
    "float": lambda t, _: t.float(),
    "data": lambda t, _: t.data,
    "deepcopy": lambda t, _: copy.deepcopy(t),
    "copy": lambda t, _: copy.copy(t),
    "pickle": lambda t, _: pickle.loads(pickle.dumps(t)),
    "numpy": lambda t, _: torch.from_numpy(t.numpy().copy()),
    "chain": lambda t, _: t.detach().clone().cpu().contiguous(),
    "whole_slice": lambda t, buf: _filled(buf, t),
    "copy_": lambda t, buf: buf.copy_(t),
    "view_copy": lambda t, buf: _filled_by_view(buf, t),
    "tensor": lambda t, _: torch.as_tensor(t),
}


def _filled(buffer: Tensor, t: Tensor) -> Tensor:
    buffer[:] = t
    return buffer


def _filled_by_view(buffer: Tensor, t: Tensor) -> Tensor:
    buffer[...].copy_(t)
    return buffer


@pattern({"id_a/x": (2,), "id_b/late": (2,)}, passes=3)
def identity_between_nodes(b: str) -> Step:
    same = {n: torch.zeros(2) for n in COPIES}
    later = {n: torch.zeros(2) for n in COPIES}
    last: Values = {n: torch.zeros(2) for n in COPIES}

    def step(i: Values) -> Values:
        nonlocal last
        x, *prev = A.input_tensors("id_a", {"x": i["id_a/x"], **{f"prev_{n}": v for n, v in last.items()}})
        y = x + sum(v * (0.01 * k) for k, v in enumerate(prev))
        A.output_tensors("id_a", {"y": y}, export_with=b)
        late = A.input_tensors("id_b", {"late": i["id_b/late"]})
        # Declared while the node is open, so that the copy is made in the middle of it.
        got = [A.input_tensors("id_b", {n: copied(y, same[n])}) for n, copied in COPIES.items()]
        z = late + sum(v * k for k, v in enumerate(got))
        z = torch.tanh(z)
        A.output_tensors("id_b", {"z": z}, export_with=b)
        last = {n: copied(z, later[n]) for n, copied in COPIES.items()}
        return {"id_b/z": z}

    return step


@pattern({"ring_0/x": (2,)}, passes=3)
def feedback_over_many_nodes(b: str) -> Step:
    carried = [torch.zeros(2) for _ in range(4)]

    def step(i: Values) -> Values:
        nonlocal carried
        new = []
        forward = i["ring_0/x"]
        for k in range(4):
            given = {"f" if k else "x": forward, "own": carried[k], "ahead": carried[(k + 1) % 4]}
            f, own, ahead = A.input_tensors(f"ring_{k}", given)
            v = torch.tanh(f + 0.5 * own - 0.3 * ahead)
            A.output_tensors(f"ring_{k}", {"v": v}, export_with=b, graph_outputs=k == 3)
            new.append(v)
            forward = v
        carried = new
        return {"ring_3/v": carried[3]}

    return step


@pattern({"del_a/x": (2,)}, passes=3)
def delayed_edge(b: str) -> Step:
    before = torch.zeros(2)

    def step(i: Values) -> Values:
        nonlocal before
        x = A.input_tensors("del_a", {"x": i["del_a/x"]})
        y = A.output_tensors("del_a", {"y": x * 2.0}, export_with=b)
        now, old = A.input_tensors("del_b", {"now": y, "old": before})
        d = A.output_tensors("del_b", {"d": now - old}, export_with=b)
        before = y
        return {"del_b/d": d}

    return step


@pattern({"buf_a/x": (3,), "buf_c/q": (3,)}, passes=1)
def one_buffer_for_several_nodes(b: str) -> Step:
    """Two nodes write their results to the same memory; a third reads it after other code changed it."""
    buffer = torch.zeros(3)

    def step(i: Values) -> Values:
        x = A.input_tensors("buf_a", {"x": i["buf_a/x"]})
        buffer[:] = x * 2.0
        A.output_tensors("buf_a", {"y": buffer}, export_with=b)
        z = A.input_tensors("buf_b", {"z": buffer})
        buffer[:] = z + 1.0
        w = A.output_tensors("buf_b", {"w": buffer}, export_with=b).clone()
        buffer.numpy()[:] = i["buf_c/q"].numpy()
        q = A.input_tensors("buf_c", {"q": buffer})
        o = A.output_tensors("buf_c", {"o": q * 3.0}, export_with=b)
        return {"buf_b/w": w, "buf_c/o": o}

    return step


@pattern({"mir_a/x": (3,)}, passes=3)
def mirrored(b: str) -> Step:
    held, back = torch.zeros(3), torch.zeros(3)

    def step(i: Values) -> Values:
        x, p = A.input_tensors("mir_a", {"x": i["mir_a/x"], "p": back})
        y = A.output_tensors("mir_a", {"y": x * 2.0 + p}, export_with=b)
        held.numpy()[:] = y.numpy()
        got = A.mirror_leapp_tags({"k": [y]}, {"k": [held]})
        z = A.input_tensors("mir_b", {"y": got["k"][0]})
        o = A.output_tensors("mir_b", {"o": torch.tanh(z)}, export_with=b, graph_outputs=True)
        back.numpy()[:] = o.numpy()
        A.mirror_leapp_tags(o, back)
        return {"mir_b/o": o}

    return step


# -- decorated functions -----------------------------------------------------------------------------------------------


def shift(x: Tensor, by: Tensor = torch.full((3,), 0.25), times: int = 2) -> Tensor:
    moved = x + by * times
    return moved


def helper_outputs(x: Tensor) -> tuple[Tensor, Tensor]:
    def inner(v: Tensor) -> Tensor:
        return v * 3.0

    low, high = inner(x) - 1.0, inner(x) + 1.0
    if x.shape[0] == 0:
        return x
    return low, high


class Controller(nn.Module):
    def __init__(self, backend: str) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.gain = 0.5
        self.pid = A.method(node_name="m_bound", export_with=backend)(self.pid)  # type: ignore[method-assign]

    def pid(self, error: Tensor, *more: Tensor, scale: Tensor | None = None) -> Tensor:
        command = self.gain * error
        for m in more:
            command = command + m
        if scale is not None:
            command = command * scale
        return command


@pattern({"m_fun/x": (3,), "m_bound/arg_0": (3,), "m_bound/scale": (3,), "m_named/d_u": (3,), "m_named/d_v": (3,)})
def methods(b: str) -> Step:
    fun = A.method(node_name="m_fun", export_with=b)(shift)
    pair = A.method(node_name="m_pair", export_with=b)(helper_outputs)
    square = A.method(node_name="m_lambda", export_with=b)(lambda x: x * x)
    part = A.method(node_name="m_part", export_with=b)(functools.partial(shift, times=5))

    class Kit:
        @staticmethod
        @A.method(node_name="m_static", export_with=b)
        def double(x: Tensor) -> Tensor:
            return x * 2.0

        @classmethod
        @A.method(node_name="m_class", export_with=b)
        def negate(cls, x: Tensor) -> Tensor:
            flipped = -x
            return flipped

        @A.method(node_name="m_self", export_with=b)
        def plain(self, x: Tensor) -> list[Tensor]:
            return [x + 1.0, x - 1.0]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 3)

        @A.method(node_name="m_forward", export_with=b)
        def forward(self, x: Tensor) -> Tensor:
            out = torch.tanh(self.lin(x))
            return out

    @A.method(
        node_name="m_named", export_with=b, output_names=["total", "rest"], graph_outputs=["total"],
        input_semantics={"d_u": {"kind": InputKindEnum.VECTOR3D, "element_names": ["x", "y", "z"]}},
        output_semantics={"total": {"kind": "target/joint/position", "units": "rad"}},
    )  # fmt: skip
    def named(d: Values, y: Tensor) -> tuple[Tensor, Tensor]:
        result = (inner(d["u"]) + d["v"] + y, y - 1.0)
        return result

    @A.method(node_name="m_inner", export_with=b)
    def inner(x: Tensor) -> Tensor:
        return x * 7.0

    net, kit, control = Net(), Kit(), Controller(b)

    def step(i: Values) -> Values:
        x = fun(i["m_fun/x"])
        low, high = pair(x)
        y = part(square(low))
        z = Kit.double(Kit.negate(high))
        u, v = kit.plain(net(z))
        c = control.pid(u, i["m_bound/arg_0"], scale=i["m_bound/scale"])
        total, rest = named({"u": i["m_named/d_u"], "v": i["m_named/d_v"]}, y)
        w = A.input_tensors("m_end", {"v": v})
        e = A.output_tensors("m_end", {"e": inner(w)}, export_with=b)
        return {"m_bound/command": c, "m_named/total": total, "m_named/rest": rest, "m_end/e": e}

    return step
