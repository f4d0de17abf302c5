"""Native repositories: read by Triton's own message type, run from their own files, compared with the local runtime."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import leapp
from leapp import annotate
from leapp.bundle import open_bundle
from leapp.bundle.sidecars import describe_model
from leapp.bundle.staging import Staging
from leapp.deploy import TritonOptions, deploy_triton
from leapp.errors import BundleError, InputError
from leapp.graph.contract import Contract, Node, Wiring
from leapp.runtime import Pipeline
from tests.deploy import bundles
from tests.deploy.interpreter import END, START, Server, configs
from tests.runtime import bundles as traced

STEPS = 200


def drive(server: Server, model: str, inputs: list[dict[str, Any]], sequence: int = 1) -> list[dict[str, Any]]:
    flags = [START, *[0] * (len(inputs) - 2), END]
    return [server.infer(model, values, sequence, flag) for values, flag in zip(inputs, flags, strict=True)]


def local(bundle: Path, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    pipeline = Pipeline(bundle)
    return [pipeline(values) for values in inputs]


def assert_same(expected: list[dict[str, Any]], got: list[dict[str, Any]], renamed: dict[str, str] | None = None) -> None:
    """The same values up to rounding: nodes in one merged session and nodes alone may add up in another order."""
    assert len(expected) == len(got)
    for step, (one, other) in enumerate(zip(expected, got, strict=True)):
        assert {(renamed or {}).get(key, key) for key in one} == set(other)
        for key, value in one.items():
            found = other[(renamed or {}).get(key, key)]
            np.testing.assert_allclose(found.reshape(value.shape), value, rtol=1e-5, atol=1e-6, err_msg=f"step {step}, {key}")


def random_inputs(bundle: Path, steps: int) -> list[dict[str, Any]]:
    pipeline = Pipeline(bundle)
    return [pipeline.get_mock_input() for _ in range(steps)]


def test_state_inside_a_node_and_feedback_across_nodes_run_as_in_the_local_runtime(tmp_path: Path) -> None:
    bundle = bundles.arm(tmp_path / "arm")
    found = deploy_triton(bundle, tmp_path / "repository")
    server = Server(tmp_path / "repository")
    assert found.models == {"arm.arm": "onnxruntime", "arm.policy": "onnxruntime", "arm.wiring": "ensemble", "arm": "python"}
    assert [state.input_name for state in server.configs["arm.arm"].sequence_batching.state] == ["h"]
    runs = {7: bundles.arm_inputs(1, STEPS), 8: bundles.arm_inputs(2, STEPS, dye=True)}
    made: dict[int, list[Any]] = {7: [], 8: []}
    for step in range(STEPS):
        flags = START if step == 0 else END if step == STEPS - 1 else 0
        for sequence, inputs in runs.items():
            made[sequence].append(server.infer("arm", inputs[step], sequence, flags))
    for sequence, inputs in runs.items():
        assert_same(local(bundle, inputs), made[sequence])
    with pytest.raises(RuntimeError, match="sequence 7 has no state"):
        server.infer("arm", runs[7][0], 7)


def test_a_step_that_fails_half_way_ends_the_sequence(tmp_path: Path) -> None:
    """The first node has taken its step when the second fails: going on from there would be a wrong action."""
    bundle = bundles.arm(tmp_path / "arm")
    deploy_triton(bundle, tmp_path / "repository")
    server, inputs = Server(tmp_path / "repository"), bundles.arm_inputs(4, 10)
    drive(server, "arm", inputs[:5])
    server.infer("arm", inputs[0], 1, START)
    with pytest.raises(RuntimeError, match=r"The sequence is lost, start it again\."):
        server.infer("arm", {**inputs[1], "policy/mode": np.array([99])}, 1)
    with pytest.raises(RuntimeError, match="sequence 1 has no state"):
        server.infer("arm", inputs[1], 1)
    assert_same(local(bundle, inputs), drive(server, "arm", inputs))


def test_a_silent_sequence_is_forgotten_and_a_lively_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = bundles.arm(tmp_path / "arm")
    deploy_triton(bundle, tmp_path / "repository", TritonOptions(idle_seconds=10))
    server, inputs = Server(tmp_path / "repository"), bundles.arm_inputs(8, 12)
    server.infer("arm", inputs[0], 2, START)
    now = time.monotonic()
    monkeypatch.setitem(server.loop("arm").execute.__globals__, "time", SimpleNamespace(monotonic=lambda: now))
    made = []
    for step, values in enumerate(inputs):
        made.append(server.infer("arm", values, 1, 0 if step else START))
        now += 1
    assert_same(local(bundle, inputs), made)
    with pytest.raises(RuntimeError, match="sequence 2 has no state: it ended or was idle for too long"):
        server.infer("arm", inputs[1], 2)


def test_a_state_that_comes_last_needs_no_model_above(tmp_path: Path) -> None:
    stages = {
        "first": traced.Stage(traced.Scale(3, 3), {"x": torch.ones(1, 3)}, ["y"], "jit"),
        "last": traced.Stage(traced.Memory(), {"x": torch.ones(1, 3), "h": torch.zeros(2)}, ["y", "h_out"], "onnx"),
    }
    start = {"last/h": torch.tensor([1.0, 2.0])}
    for outputs, models in ((["last/y"], {"g", "g.first", "g.last"}), (["last/y", "first/y"], {"g.wiring"})):
        folder = tmp_path / str(len(outputs))
        flow, feedback = {"first/y": ("last/x",)}, {"last/h_out": ("last/h",)}
        bundle = traced.write_bundle(folder / "g", stages, flow, feedback, start, outputs=outputs).parent
        found = deploy_triton(bundle, folder / "repository")
        assert set(found.models) == {"g", "g.first", "g.last", *models}
        inputs = random_inputs(bundle, 40)
        assert_same(local(bundle, inputs), drive(Server(folder / "repository"), "g", inputs))


def test_the_repository_is_a_bundle_itself(tmp_path: Path) -> None:
    bundle = bundles.arm(tmp_path / "arm")
    inputs = bundles.arm_inputs(3, 20)
    for backend in ("native", "python"):
        deploy_triton(bundle, tmp_path / backend, TritonOptions(backend=backend))  # type: ignore[arg-type]
        served = open_bundle(tmp_path / backend)
        assert served.digest is not None
        assert served.contract.system["leapp deployment of"] == open_bundle(bundle).digest
        for expected, got in zip(local(bundle, inputs), local(tmp_path / backend, inputs), strict=True):
            assert all(np.array_equal(expected[key], got[key]) for key in expected)


@pytest.mark.parametrize("backend", ["onnx", "jit"])
def test_state_inside_one_node_needs_no_model_above(tmp_path: Path, backend: str) -> None:
    bundle = traced.memory(tmp_path / "g", backend).parent
    found = deploy_triton(bundle, tmp_path / "repository")
    assert set(found.models) == {"g", "g.p"} and found.models["g"] == "ensemble" and found.stateful
    inputs = random_inputs(bundle, STEPS)
    assert_same(local(bundle, inputs), drive(Server(tmp_path / "repository"), "g", inputs))


@pytest.mark.parametrize(("first", "second"), [("onnx", "jit"), ("jit", "onnx")])
def test_a_loop_over_two_engines_starts_from_two_values(tmp_path: Path, first: str, second: str) -> None:
    bundle = traced.loop(tmp_path / "g", first, second).parent
    deploy_triton(bundle, tmp_path / "repository")
    inputs = random_inputs(bundle, STEPS)
    assert_same(local(bundle, inputs), drive(Server(tmp_path / "repository"), "g", inputs))


def test_a_pipeline_without_state_is_a_plain_ensemble(tmp_path: Path) -> None:
    bundle = traced.chain(tmp_path / "g", ["onnx", "jit", "onnx"])[0].parent
    found = deploy_triton(bundle, tmp_path / "repository")
    server = Server(tmp_path / "repository")
    assert found.models["g"] == "ensemble" and not found.stateful
    assert not any(config.HasField("sequence_batching") for config in server.configs.values())
    inputs = random_inputs(bundle, 5)
    assert_same(local(bundle, inputs), [server.infer("g", values) for values in inputs])


def test_a_state_goes_on_when_a_client_asks_for_another_output(tmp_path: Path) -> None:
    """A server leaves out the steps of an ensemble that nobody asked for; a state among them must not stand still."""
    stages = {
        "memory": traced.Stage(traced.Memory(), {"x": torch.ones(3), "h": torch.zeros(2)}, ["y", "h_out"], "onnx"),
        "other": traced.Stage(traced.Scale(3, 2), {"x": torch.ones(1, 3)}, ["y"], "onnx"),
    }
    start = {"memory/h": torch.tensor([1.0, 2.0])}
    bundle = traced.write_bundle(tmp_path / "g", stages, {}, {"memory/h_out": ("memory/h",)}, start).parent
    deploy_triton(bundle, tmp_path / "repository")
    server, inputs = Server(tmp_path / "repository"), random_inputs(bundle, 12)
    made = [
        server.infer("g", values, 1, START if i == 0 else 0, ["other/y"] if i % 3 else ["memory/y"])
        for i, values in enumerate(inputs)
    ]
    expected = [
        {key: value for key, value in values.items() if key == ("other/y" if i % 3 else "memory/y")}
        for i, values in enumerate(local(bundle, inputs))
    ]
    assert_same(expected, made)


def test_names_are_kept_apart(tmp_path: Path) -> None:
    """Nodes whose names differ in signs only, some called like a model of leapp's, and an output called like an input."""
    same = traced.Stage(traced.Scale(2, 2), {"x": torch.ones(1, 2)}, ["x_"], "onnx")
    script = traced.Stage(traced.Scale(2, 2, 1), {"x": torch.ones(1, 2)}, ["x"], "jit")
    stages = {"wiring": same, "pol-icy": script, "pol/icy": same, "Pol_icy": same, "g": same, "pol%icy": same}
    bundle = traced.write_bundle(tmp_path / "g", stages, {"g/x_": ("wiring/x",)}).parent
    found = deploy_triton(bundle, tmp_path / "repository")
    assert len({name.casefold() for name in found.models}) == len(stages) + 1
    assert found.outputs["pol-icy/x"][0] == "pol-icy/x_out" and found.outputs["wiring/x_"][0] == "wiring/x_"
    inputs = random_inputs(bundle, 3)
    server = Server(tmp_path / "repository")
    renamed = {key: name for key, (name, _, _) in found.outputs.items()}
    assert_same(local(bundle, inputs), [server.infer("g", values) for values in inputs], renamed)


def test_one_output_that_feeds_two_states_is_kept_above(tmp_path: Path) -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            new = 0.5 * a + x - 0.25 * b
            return new * 2.0, new

    stage = traced.Stage(Twice(), {"x": torch.ones(2), "a": torch.ones(2), "b": torch.ones(2)}, ["y", "n"], "onnx")
    start = {"p/a": torch.tensor([1.0, 2.0]), "p/b": torch.tensor([-3.0, 5.0])}
    bundle = traced.write_bundle(tmp_path / "g", {"p": stage}, {}, {"p/n": ("p/a", "p/b")}, start).parent
    deploy_triton(bundle, tmp_path / "repository")
    server, inputs = Server(tmp_path / "repository"), random_inputs(bundle, 30)
    assert len(server.configs["g.p"].sequence_batching.state) == 1
    assert_same(local(bundle, inputs), drive(server, "g", inputs))


def test_options_reach_every_model(tmp_path: Path) -> None:
    bundle = bundles.arm(tmp_path / "arm")
    options = TritonOptions(
        version=5, version_policy="specific", instances=2, kind="gpu", gpus=(0, 1), sequences=16, idle_seconds=2.5
    )
    deploy_triton(bundle, tmp_path / "repository", options)
    for name, config in configs(tmp_path / "repository").items():
        assert list(config.version_policy.specific.versions) == [5] and (tmp_path / "repository" / name / "5").is_dir()
        if config.platform == "ensemble":
            continue
        (group,) = config.instance_group
        assert group.count == 2
        engine = config.backend == "onnxruntime"
        assert (group.kind, list(group.gpus)) == ((type(group).KIND_GPU, [0, 1]) if engine else (type(group).KIND_CPU, []))
        if config.HasField("sequence_batching"):
            assert config.sequence_batching.max_sequence_idle_microseconds == 2_500_000
            assert config.sequence_batching.oldest.max_candidate_sequences == 16
    inputs = bundles.arm_inputs(5, 10)
    assert_same(local(bundle, inputs), drive(Server(tmp_path / "repository"), "arm", inputs))


def batchable(directory: Path, backend: str = "onnx", start: Any = ((1, 2, 3),) * 2, **options: Any) -> Path:
    """One node with a state, traced with two rows."""
    torch.manual_seed(0)
    x, h = torch.randn(2, 3), torch.tensor(start, dtype=torch.float32)
    leapp.start("g", save_path=str(directory), **options)
    try:
        for _ in range(2):
            given = annotate.input_tensors("p", {"x": x})
            state = annotate.state_tensors("p", {"h": h})
            new = 0.5 * state + given
            annotate.update_state("p", {"h": new})
            annotate.output_tensors("p", {"y": torch.tanh(new)}, export_with=backend)
            h = new.detach()
    finally:
        leapp.stop()
    leapp.compile_graph(visualize=False)
    return directory / "g"


@pytest.mark.parametrize("backend", ["onnx", "jit"])
def test_a_batch_serves_one_row_to_each_sequence(tmp_path: Path, backend: str) -> None:
    bundle = batchable(tmp_path, backend, dynamic_batch=True)
    found = deploy_triton(bundle, tmp_path / "repository", TritonOptions(max_batch_size=8))
    assert found.inputs["p/x"] == ("p/x", "FP32", [-1, 3])
    server, rng = Server(tmp_path / "repository"), np.random.default_rng(0)
    assert {config.max_batch_size for config in server.configs.values()} == {8}
    rows = rng.normal(size=(20, 2, 3)).astype(np.float32)
    expected = local(bundle, [{"p/x": both} for both in rows])
    for sequence in range(2):
        inputs = [{"p/x": both[sequence : sequence + 1]} for both in rows]
        assert_same([{"p/y": v["p/y"][sequence : sequence + 1]} for v in expected], drive(server, "g", inputs, sequence))


def test_without_a_batch_size_the_traced_batch_is_served(tmp_path: Path) -> None:
    bundle = batchable(tmp_path, dynamic_batch=True)
    found = deploy_triton(bundle, tmp_path / "repository")
    assert found.inputs["p/x"] == ("p/x", "FP32", [2, 3])
    inputs = [{"p/x": np.random.default_rng(i).normal(size=(2, 3)).astype(np.float32)} for i in range(20)]
    assert_same(local(bundle, inputs), drive(Server(tmp_path / "repository"), "g", inputs))


REFUSED = [
    (lambda d: batchable(d.parent), {"max_batch_size": 8}, r"'p/x' does not take any batch.*dynamic_batch=True"),
    (lambda d: batchable(d.parent, start=((1, 2, 3), (4, 5, 6)), dynamic_batch=True), {"max_batch_size": 8},
     r"rows of 'p/h\w*' start from different"),
    (lambda d: traced.chain(d, ["onnx", "pt2"])[0].parent, {}, r"Node 'n1' is a \.pt2 program.*--backend python"),
    (lambda d: traced.chain(d, ["onnx", None])[0].parent, {}, r"no model for node 'n1'"),  # type: ignore[list-item]
    (lambda d: typed(d, torch.complex64), {}, r"'p/x' is complex64, which Triton cannot"),
    (lambda d: typed(d, torch.complex64), {"backend": "python"}, r"'p/x' is complex64, which Triton cannot"),
    (lambda d: typed(d, torch.bfloat16), {}, r"'p/x' is bfloat16, which Triton cannot"),
    (lambda d: typed(d, torch.float32, ()), {}, r"'p/x' is a single number without axes"),
    (lambda d: typed(d, torch.float32, (0, 2)), {}, r"'p/x' has the shape \[0, 2\]"),
]  # fmt: skip


def typed(directory: Path, dtype: torch.dtype, shape: tuple[int, ...] = (2,)) -> Path:
    class Same(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    stage = traced.Stage(Same(), {"x": torch.ones(shape, dtype=dtype)}, ["y"], "jit")
    return traced.write_bundle(directory, {"p": stage}).parent


@pytest.mark.parametrize(("make", "options", "said"), REFUSED)
def test_what_a_server_cannot_run_is_refused_by_name(make: Any, options: dict[str, Any], said: str, tmp_path: Path) -> None:
    bundle = make(tmp_path / "g")
    with pytest.raises(BundleError, match=said):
        deploy_triton(bundle, tmp_path / "repository", TritonOptions(**options))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g"]


def test_clients_may_know_a_port_by_another_dtype(tmp_path: Path) -> None:
    bundle = typed(tmp_path / "g", torch.bfloat16)
    seen = {"p/x": "float32", "p/y": "float64"}
    found = deploy_triton(bundle, tmp_path / "repository", TritonOptions(backend="python", dtypes=seen))
    assert (found.inputs, found.outputs) == ({"p/x": ("p/x", "FP32", [2])}, {"p/y": ("p/y", "FP64", [2])})
    (config,) = configs(tmp_path / "repository").values()
    kinds = type(config.input[0]).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    assert [kinds[entry.data_type].name for entry in (*config.input, *config.output)] == ["TYPE_FP32", "TYPE_FP64"]
    wrong = {
        "'p/z' is not a graph input or output": {"p/z": "float32"},
        "'p/x' cannot be bfloat16 for clients; Triton has": {"p/x": "bfloat16"},
        "'p/y' cannot be int32 for clients: it is bfloat16": {"p/y": "int32"},
        "'p/y' cannot be float16 for clients: it is bfloat16": {"p/y": "float16"},
    }
    for said, dtypes in wrong.items():
        with pytest.raises(InputError, match=said):
            deploy_triton(bundle, tmp_path / "other", TritonOptions(backend="python", dtypes={**seen, **dtypes}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "python", "max_batch_size": 4}, "max_batch_size"),
        ({"threads": 2}, "backend='python'"),
        ({"dtypes": {"p/x": "float32"}}, "backend='python'"),
        ({"gpus": (0,)}, "kind='gpu'"),
        ({"idle_seconds": 0.0}, "idle_seconds"),
        ({"instances": 0}, "instances"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        TritonOptions(**options)


@pytest.mark.parametrize("backend", ["native", "python"])
def test_weights_beside_a_model_come_along(tmp_path: Path, backend: Any) -> None:
    """Two nodes whose weights have the same file name, each in a directory of its own."""
    inputs, outputs = [bundles.port("x", (1, 64))], [bundles.port("y", (1, 64))]
    with Staging(tmp_path / "g") as staging:
        nodes = {}
        for seed, name in enumerate(("one", "two")):
            make = bundles.helper.make_node("MatMul", ["x", "w"], ["y"])
            data = bundles.onnx_model(inputs, outputs, [make], {"w": bundles.weights(64, 64, seed=seed)})
            path = staging.path / name / "net.onnx"
            path.parent.mkdir()
            model = onnx.ModelProto.FromString(data)
            onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
            described = describe_model(path, staging.path, "onnx")
            nodes[name] = Node(inputs=tuple(inputs), outputs=tuple(outputs), model=described)
        wiring = Wiring(data_flow={"one/y": ("two/x",)}, inputs={"one": ("x",)}, outputs={"two": ("y",)})
        system = {"leapp config version": "1.3", "leapp version": "1.0.0"}
        staging.commit("g", Contract(nodes=nodes, pipeline=wiring, system=system))
    deploy_triton(tmp_path / "g", tmp_path / "repository", TritonOptions(backend=backend))
    given = random_inputs(tmp_path / "g", 3)
    expected = local(tmp_path / "g", given)
    assert_same(expected, local(tmp_path / "repository", given))
    if backend == "native":
        server = Server(tmp_path / "repository")
        assert_same(expected, [server.infer("g", values) for values in given])


def test_a_new_version_replaces_the_old_one_whole_and_other_models_stay(tmp_path: Path) -> None:
    bundle, repository = bundles.arm(tmp_path / "arm"), tmp_path / "repository"
    other = repository / "detector" / "1" / "model.onnx"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"another model")
    deploy_triton(bundle, repository)
    deploy_triton(bundle, repository, TritonOptions(version=2))
    assert other.read_bytes() == b"another model"
    assert not [path for path in repository.glob("arm*/1")] and len(list(repository.glob("arm*/2"))) == 4
    deploy_triton(bundle, repository, TritonOptions(backend="python"))
    assert sorted(path.name for path in repository.iterdir()) == ["arm", "arm.yaml", "detector"]


def test_a_repository_that_cannot_be_exchanged_is_replaced_file_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, repository = bundles.arm(tmp_path / "arm"), tmp_path / "repository"
    deploy_triton(bundle, repository)
    # A process cannot stand in a directory that is exchanged.
    monkeypatch.chdir(repository)
    deploy_triton(bundle, repository, TritonOptions(version=2))
    assert not [path for path in repository.glob("arm*/1")] and len(list(repository.glob("arm*/2"))) == 4
    inputs = bundles.arm_inputs(6, 10)
    assert_same(local(bundle, inputs), drive(Server(repository), "arm", inputs))


def test_directories_that_hold_something_else_are_left_alone(tmp_path: Path) -> None:
    bundle, second = bundles.arm(tmp_path / "arm"), traced.memory(tmp_path / "g", "onnx").parent
    with pytest.raises(BundleError, match="holds the bundle itself"):
        deploy_triton(bundle, tmp_path)
    with pytest.raises(BundleError, match="holds the bundle 'g'"):
        deploy_triton(bundle, second)
    deploy_triton(second, tmp_path / "repository")
    with pytest.raises(BundleError, match="serves 'g' already"):
        deploy_triton(bundle, tmp_path / "repository")
    (tmp_path / "mine" / "arm").mkdir(parents=True)
    with pytest.raises(BundleError, match="a model 'arm' that leapp did not write"):
        deploy_triton(bundle, tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["arm"]
