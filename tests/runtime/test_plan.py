"""Wiring that cannot run as written is refused by name when a plan is made; the order follows the edges alone."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec
import pytest
import torch

from leapp.bundle import open_bundle, reading
from leapp.bundle.recent import Recent
from leapp.errors import BundleError
from leapp.graph.contract import Contract, ModelFile, Node, Port, Wiring
from leapp.runtime import Pipeline, torch_engines
from leapp.runtime.inference_manager import InferenceManager
from leapp.runtime.plan import make_plan
from tests.runtime.bundles import Scale, Stage, chain, write_bundle


def port(name: str, shape: tuple[int, ...] = (2,), dtype: str = "float32") -> Port:
    return Port(name=name, shape=shape, dtype=dtype)


def node(inputs: str, outputs: str, backend: str | None = "onnx") -> Node:
    model = ModelFile(model_path="m", backend=backend) if backend else ModelFile()
    return Node(inputs=tuple(map(port, inputs.split())), outputs=tuple(map(port, outputs.split())), model=model)


def contract(nodes: dict[str, Node] | None = None, **wiring: object) -> Contract:
    """``a/y -> b/x``, where ``b`` also remembers its ``h``; every keyword replaces a part of the wiring."""
    parts = {
        "data_flow": {"a/y": ("b/x",)},
        "feedback_flow": {"b/h": ("b/h",)},
        "inputs": {"a": ("x",)},
        "outputs": {"b": ("y",)},
    } | wiring
    return Contract(nodes=nodes or {"a": node("x", "y"), "b": node("x h", "y h")}, pipeline=Wiring(**parts))


def other_input(name: str, shape: tuple[int, ...], dtype: str) -> Node:
    """Node ``b`` with another form of its first input."""
    return msgspec.structs.replace(node("x h", "y h"), inputs=(port(name, shape, dtype), port("h")))


BROKEN = {
    "cycle": (
        contract(
            {"a": node("x z", "y"), "b": node("x", "y"), "c": node("x", "y")},
            data_flow={"a/y": ("b/x",), "b/y": ("c/x",), "c/y": ("a/z",)},
            feedback_flow={},
            outputs={},
        ),
        "cycle through 'a', 'b', 'c'",
    ),
    "self cycle": (
        contract(data_flow={"a/y": ("b/x",), "b/h": ("b/h",)}, feedback_flow={}, outputs={"b": ("y",)}),
        "cycle through 'b'",
    ),
    "fed by two edges": (contract(data_flow={"a/y": ("b/x",), "b/y": ("b/x",)}), "'b/x' is fed twice, from 'a/y' and.* 'b/y'"),
    "edge and caller": (contract(inputs={"a": ("x",), "b": ("x",)}), "'b/x' is fed twice, from 'a/y' and from outside"),
    "edge and feedback": (contract(feedback_flow={"b/h": ("b/h", "b/x")}), "'b/x' is fed twice.*'a/y'.*'b/h'"),
    "fed by nothing": (contract(inputs={}), "nothing feeds the input 'a/x'"),
    "no state": (contract(feedback_flow={}, outputs={"b": ("y", "h")}), "nothing feeds the input 'b/h'"),
    "unknown source": (contract(data_flow={"a/q": ("b/x",)}), "no output is called 'a/q'"),
    "unknown node": (contract(data_flow={"z/y": ("b/x",)}), "no output is called 'z/y'"),
    "unknown target": (contract(data_flow={"a/y": ("b/q",)}), "no input is called 'b/q'"),
    "unknown feedback": (contract(feedback_flow={"b/h": ("b/nope",)}), "feedback_flow.*no input is called 'b/nope'"),
    "unknown input": (contract(inputs={"a": ("x", "w")}), "pipeline.inputs.a: no input is called 'a/w'"),
    "unknown output": (contract(outputs={"b": ("y", "w")}), "pipeline.outputs.b: no output is called 'b/w'"),
    "listed twice": (contract(outputs={"b": ("y", "y")}), "'b/y' is listed twice"),
    "goes nowhere": (contract(outputs={}), "'b/y' goes nowhere"),
    "shapes differ": (
        contract({"a": node("x", "y"), "b": other_input("x", (3,), "float32")}),
        r"'a/y' gives float32 \[2\], but 'b/x' takes float32 \[3\]",
    ),
    "dtypes differ": (
        contract({"a": node("x", "y"), "b": other_input("x", (2,), "float64")}),
        r"'b/x' takes float64 \[2\]",
    ),
    "backend": (contract({"a": node("x", "y", "trt"), "b": node("x h", "y h")}), "'a' has the backend 'trt'"),
    "same name twice": (contract({"a": node("x x", "y"), "b": node("x h", "y h")}), "node 'a': the port 'x' is listed twice"),
    "dtype": (
        contract({"a": msgspec.structs.replace(node("x", "y"), inputs=(port("x", (2,), "float31"),)), "b": node("x h", "y h")}),
        "unknown dtype 'float31'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_wiring_is_refused_by_name(case):
    broken, message = BROKEN[case]
    with pytest.raises(BundleError, match=message) as caught:
        make_plan(broken)
    assert isinstance(caught.value, ValueError)


def test_the_unbroken_contract_is_accepted():
    assert make_plan(contract()).order == ("a", "b")


def test_order_follows_edges_whatever_the_file_says():
    generator = random.Random(0)
    for _ in range(30):
        count = 8
        sources = {f"n{i}": f"n{generator.randrange(i)}" if i else None for i in range(count)}
        nodes = {name: node("x", "y", generator.choice(["onnx", "jit"])) for name in sources}
        shuffled = list(nodes)
        generator.shuffle(shuffled)
        flow: dict[str, tuple[str, ...]] = {}
        for target, source in sources.items():
            if source:
                flow[f"{source}/y"] = (*flow.get(f"{source}/y", ()), f"{target}/x")
        plan = make_plan(
            contract(
                {name: nodes[name] for name in shuffled},
                data_flow=flow, feedback_flow={}, inputs={"n0": ("x",)}, outputs={name: ("y",) for name in nodes},
            )
        )  # fmt: skip
        place = {name: index for index, name in enumerate(plan.order)}
        assert all(place[source] < place[target] for target, source in sources.items() if source)
        straight = contract(nodes, data_flow=flow, feedback_flow={}, inputs={"n0": ("x",)}, outputs={n: ("y",) for n in nodes})
        assert make_plan(straight).order == plan.order


def test_nodes_of_one_backend_stand_together_when_edges_allow():
    nodes = {name: node("x", "y", backend) for name, backend in zip("abcd", ["onnx", "jit", "onnx", "jit"], strict=True)}
    free = contract(
        nodes, data_flow={}, feedback_flow={}, inputs={n: ("x",) for n in nodes}, outputs={n: ("y",) for n in nodes}
    )
    assert make_plan(free).order == ("a", "c", "b", "d")


def test_rules_are_checked_once_for_a_path_and_again_for_a_bundle_that_a_caller_made(tmp_path, monkeypatch):
    from leapp.graph import validate

    calls, plain = [], validate._wiring_problems
    monkeypatch.setattr(validate, "_wiring_problems", lambda *given: calls.append(given) or plain(*given))
    monkeypatch.setattr(reading, "_recent_descriptions", Recent(1 << 20))  # another test may have opened an equal bundle
    path, modules = chain(tmp_path, ["onnx", "onnx"])
    Pipeline(path)
    assert len(calls) == 1
    bundle = open_bundle(path)
    wiring = msgspec.structs.replace(bundle.contract.pipeline, outputs={})
    broken = msgspec.structs.replace(bundle.contract, pipeline=wiring)
    with pytest.raises(BundleError, match="goes nowhere"):
        Pipeline(replace(bundle, contract=broken))
    x = torch.randn(2, 8)
    (made,) = Pipeline(bundle)({"n0/x": x.numpy()}).values()
    torch.testing.assert_close(torch.from_numpy(made), modules[1](modules[0](x)))


@pytest.mark.parametrize("api", [Pipeline, InferenceManager])
@pytest.mark.parametrize("backend", ["onnx", "jit", "pt2"])
def test_a_model_that_is_not_what_the_bundle_says_is_refused_at_load(tmp_path, api, backend):
    path, _ = chain(tmp_path / "one", [backend])
    text = path.read_text()
    if backend == "onnx":
        path.write_text(text.replace("name: x", "name: q").replace("[x]", "[q]"))
        with pytest.raises(BundleError, match=r"'n0' has the inputs \['x'\], the bundle says \['q'\]"):
            api(path)
        path.write_text(text.replace("shape: [2, 8]", "shape: [2, 9]"))
        with pytest.raises(BundleError, match=r"'x' of node 'n0' is float32 \[2, 9\] in the bundle"):
            api(path)
    else:
        extra = "    - name: z\n      dtype: float32\n      shape: [1]\n      type: tensor\n    outputs:"
        path.write_text(text.replace("    outputs:", extra).replace("n0: [x]", "n0: [x, z]"))
        with pytest.raises(BundleError, match="'n0' takes 1 inputs"):
            api(path)


@pytest.mark.parametrize("api", [Pipeline, InferenceManager])
@pytest.mark.parametrize("backend", ["onnx", "jit", "pt2"])
def test_a_file_that_is_no_model_is_refused_by_name(tmp_path, api, backend):
    from leapp.bundle.files import hash_file

    path, _ = chain(tmp_path, [backend])
    (model,) = (p for p in tmp_path.iterdir() if p.suffix in (".onnx", ".pt", ".pt2"))
    old = hash_file(model)[1]
    model.write_bytes(b"not a model" * 20)
    path.write_text(path.read_text().replace(old, hash_file(model)[1]))
    with pytest.raises(BundleError, match="model of node 'n0'(:| cannot be opened)"):
        api(path, allow_code=True)


@pytest.mark.parametrize("api", [Pipeline, InferenceManager])
def test_a_script_without_forward_is_refused_by_name(tmp_path, api):
    from leapp.bundle.files import hash_file

    class Other(torch.nn.Module):
        @torch.jit.export
        def step(self, x: torch.Tensor):
            return x

    path, _ = chain(tmp_path, ["jit"])
    model = tmp_path / "n0.pt"
    old = hash_file(model)[1]
    torch.jit.script(Other()).save(model)
    path.write_text(path.read_text().replace(old, hash_file(model)[1]))
    with pytest.raises(BundleError, match="model of node 'n0' cannot be opened: .*forward"):
        api(path, allow_code=True)


def test_models_opened_in_threads_leave_the_compiler_as_it_was(tmp_path):
    path, _ = chain(tmp_path, ["jit"] * 3)
    given = [("STATIC", 2), ("DYNAMIC", 10)]
    before = torch._C._jit_set_fusion_strategy(given)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: Pipeline(path).warm_up(), range(24)))
    assert torch._C._jit_set_fusion_strategy(before) == given


def test_the_compiler_is_changed_for_the_first_step_only(tmp_path, counted):
    path, _ = chain(tmp_path, ["jit"])
    changes = counted(torch_engines, "set_fusion_strategy")
    pipeline = Pipeline(path)
    for number in range(4):
        pipeline({"n0/x": torch.zeros(2, 8)})
        assert len(changes) == 2, number  # set, and set back


@pytest.mark.parametrize("api", [Pipeline, InferenceManager])
def test_code_is_refused_when_asked(tmp_path, api):
    for backend in ("jit", "pt2"):
        path, _ = chain(tmp_path / backend, ["onnx", backend])
        with pytest.raises(BundleError, match=f"'n1' is a {backend} model"):
            api(path, allow_code=False)
    path, modules = chain(tmp_path / "onnx", ["onnx", "onnx"])
    x = torch.randn(2, 8)
    got = api(path, allow_code=False)({"n0/x": x})["n1/y"]
    torch.testing.assert_close(torch.as_tensor(got), modules[1](modules[0](x)))


@pytest.mark.parametrize("api", [Pipeline, InferenceManager])
def test_a_bundle_is_opened_by_yaml_by_directory_and_only_with_the_expected_digest(tmp_path, api):
    path = write_bundle(tmp_path / "g", {"p": Stage(Scale(4, 2), {"x": torch.ones(1, 4)}, ["y"], "onnx")})
    for where in (path, str(path), path.parent):
        assert api(where).inputs == ["p/x"]
    with pytest.raises(BundleError, match="digest"):
        api(path, expect_digest="0" * 64)
    with pytest.raises(FileNotFoundError):
        api(tmp_path / "nowhere.yaml")
