"""What each command answers, to people, to programs and to shells."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import leapp
from leapp import annotate
from leapp.cli import main
from leapp.runtime import Pipeline

from .conftest import JOINTS, Policy


def ask(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, Any]:
    """The exit code and the JSON answer."""
    code = main([*map(str, argv), "--json"])
    return code, json.loads(capsys.readouterr().out)


def read(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str]:
    """The exit code and what a person reads in a pipe."""
    code = main([*map(str, argv)])
    return code, capsys.readouterr().out


def new_inputs(steps: int) -> torch.Tensor:
    return torch.randn(steps, 1, 3, generator=torch.Generator().manual_seed(99))


def eager(policy: Policy, inputs: torch.Tensor) -> torch.Tensor:
    memory, made = torch.zeros(1, 3), []
    for q in inputs:
        target, memory = policy.step(q, memory)
        made.append(target)
    return torch.stack(made)


# -- inspect


def test_inspect_tells_what_to_feed_in_which_order_units_and_rate(policy: Policy, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = ask(capsys, "inspect", policy.path)
    assert code == 0
    assert data["frequency"] == 50
    (given,) = data["inputs"]
    assert (given["key"], given["shape"], given["dtype"]) == ("filter/q", [1, 3], "float32")
    assert (given["kind"], given["units"]) == ("state/joint/position", "rad")
    assert given["element_names"][-1] == JOINTS
    assert [p["key"] for p in data["outputs"]] == ["policy/target"]
    assert [s["source"] for s in data["state"]] == ["filter/memory_out"]
    assert data["missing"] == []
    code, text = read(capsys, "inspect", policy.path)
    for words in ("50 Hz", "20 ms", "hip, knee, ankle", "rad", "limits [-3.0, 3.0]", "Nothing is missing"):
        assert words in text
    assert "\x1b" not in text


def test_inspect_tells_what_is_missing(scripted: Policy, capsys: pytest.CaptureFixture[str]) -> None:
    _, data = ask(capsys, "inspect", scripted.path)
    missing = " | ".join(data["missing"])
    for words in ("no frequency", "no kind: filter/q", "no units: filter/q", "no element names: filter/q"):
        assert words in missing


def damaged(policy: Policy, directory: Path, name: str) -> Path:
    """A copy of a bundle with one byte of a file changed."""
    copy = shutil.copytree(policy.path, directory / "leg")
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    return copy


@pytest.mark.parametrize("name", ["policy.onnx", "leg_samples.safetensors", "leg.png", "leg_initial_values.safetensors"])
def test_inspect_finds_a_damaged_file(policy: Policy, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    copy = damaged(policy, tmp_path, name)
    code, data = ask(capsys, "inspect", copy)
    assert (code, data["ok"], data["files"]) == (1, False, "damaged")
    assert name.removesuffix(".onnx") in data["damage"][0]
    assert [p["key"] for p in data["inputs"]] == ["filter/q"]
    code, text = read(capsys, "inspect", copy)
    assert code == 1 and "files: DAMAGED" in text
    # A seal that fits is not in doubt: models are checked after it. Of any other file the seal itself speaks.
    assert ("seal: sealed" in text, "not sealed" in text) == (name == "policy.onnx", False)


def test_inspect_says_whether_files_were_checked(policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "files: checked, 7 files unchanged" in read(capsys, "inspect", policy.path)[1]
    copy = damaged(policy, tmp_path, "policy.onnx")
    code, text = read(capsys, "inspect", "--quick", copy)
    assert code == 0 and "models were not checked" in text
    (copy / "policy.onnx").unlink()
    assert ask(capsys, "inspect", copy)[0] == 1


def test_the_yaml_file_and_its_directory_name_the_same_bundle(policy: Policy, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (ask(capsys, "inspect", path)[1] for path in (policy.path, policy.path / "leg.yaml"))
    assert first == second


# -- verify


@pytest.mark.parametrize("thorough", [[], ["--thorough"]])
def test_verify_replays_samples(policy: Policy, thorough: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, data = ask(capsys, "verify", policy.path, *thorough)
    assert (code, data["ok"]) == (0, True)
    figures = {o["key"]: o for o in data["outputs"]}
    assert figures["policy/target"]["count"] == 4 * 3 * (5 if thorough else 1)
    assert figures["policy/target"]["largest"] < 1e-5
    assert any(s["step"] == "closed loop" and "4 passes" in s["text"] for s in data["steps"])


def test_verify_says_no_to_a_changed_file(policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = shutil.copytree(policy.path, tmp_path / "leg")
    model = copy / "policy.onnx"
    model.write_bytes(model.read_bytes()[:-1] + b"\x00")
    code, text = read(capsys, "verify", copy)
    assert code == 1
    assert "policy" in text
    assert "Not verified." in text


def test_verify_says_no_to_other_weights(
    policy: Policy, retrained: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Right files, wrong values: only the samples can tell."""
    copy = shutil.copytree(policy.path, tmp_path / "leg")
    shutil.copyfile(retrained.path / "policy.onnx", copy / "policy.onnx")
    text = (copy / "leg.yaml").read_text().partition("\nintegrity:")[0] + "\nintegrity: unsealed\n"
    for old, new in zip(*(_hashes(p.path / "leg.yaml", "policy.onnx") for p in (policy, retrained)), strict=True):
        text = text.replace(old, new)
    (copy / "leg.yaml").write_text(text)
    code, data = ask(capsys, "verify", copy)
    assert (code, data["ok"]) == (1, False)
    assert [s["step"] for s in data["steps"] if not s["ok"]] == ["node policy"]


def test_verify_says_when_there_was_nothing_to_compare_with(
    policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(policy.path, tmp_path / "leg")
    (copy / "leg_samples.safetensors").unlink()
    text = (copy / "leg.yaml").read_text().partition("\nintegrity:")[0] + "\nintegrity: unsealed\n"
    (copy / "leg.yaml").write_text(text)
    code, text = read(capsys, "verify", copy)
    assert code == 0
    assert "values not compared" in text


def _hashes(path: Path, model: str) -> list[str]:
    block = path.read_text().partition(f"model_path: {model}")[2]
    return [block.partition(f"{name}: ")[2].split()[0] for name in ("md5sum", "sha256sum")]


def test_verify_pins_a_digest(policy: Policy, capsys: pytest.CaptureFixture[str]) -> None:
    digest = ask(capsys, "inspect", policy.path)[1]["digest"]
    assert ask(capsys, "verify", policy.path, "--digest", digest)[0] == 0
    assert ask(capsys, "verify", policy.path, "--digest", "0" * 64)[0] == 1


# -- run, replay, bench


@pytest.mark.parametrize("name", ["policy", "scripted"])
def test_run_gives_what_eager_pytorch_gives(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported: Policy = request.getfixturevalue(name)
    inputs = new_inputs(6)
    np.savez(tmp_path / "in.npz", **{"filter/q": inputs.numpy()})
    code, data = ask(capsys, "run", exported.path, "--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz")
    assert (code, data["steps"]) == (0, 6)
    with np.load(tmp_path / "out.npz") as out:
        np.testing.assert_allclose(out["policy/target"], eager(exported, inputs).numpy(), rtol=1e-4, atol=1e-6)


def test_run_without_input_uses_the_recorded_samples(policy: Policy, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = ask(capsys, "run", policy.path)
    assert (code, data["steps"], data["inputs"]) == (0, 4, "the recorded samples")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"filter/p": np.zeros((1, 3), np.float32)}, "filter/q"),
        ({"filter/q": np.zeros((1, 4), np.float32)}, "[steps, 1, 3]"),
        ({"filter/q": np.zeros((1, 3))}, "float64"),
        ({"filter/q": np.zeros((1, 3), np.float32), "x": np.zeros(1)}, "'x'"),
    ],
)
def test_run_refuses_wrong_inputs_on_one_line(
    policy: Policy, arrays: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "in.npz", **arrays)
    assert main(["run", str(policy.path), "--input", str(tmp_path / "in.npz")]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_replay_finds_the_first_step_that_differs(
    policy: Policy, retrained: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = tmp_path / "run.npz"
    assert main(["run", str(policy.path), "--record", str(recording)]) == 0
    capsys.readouterr()
    code, data = ask(capsys, "replay", policy.path, recording)
    assert (code, data["same"], data["steps"]) == (0, True, 4)
    code, data = ask(capsys, "replay", retrained.path, recording)
    assert (code, data["same"]) == (1, False)
    assert (data["difference"]["step"], data["difference"]["key"]) == (0, "policy/target")
    assert data["difference"]["largest"] > 0.01


def test_bench_counts_late_steps(policy: Policy, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = ask(capsys, "bench", policy.path, "--steps", 50)
    assert (code, data["ok"], data["steps"], data["misses"]) == (0, True, 50, None)
    assert 0 < data["p50_us"] <= data["longest_us"]
    # No computer does a step in a microsecond.
    code, data = ask(capsys, "bench", policy.path, "--steps", 400, "--rate", 999_999)
    assert code == (0 if data["ok"] else 1)
    assert data["misses"] == 400
    # Unless it has no time for anything else either, the steps are to blame.
    assert not data["ok"] or data["noise_misses"] > 300


@pytest.mark.parametrize(
    ("misses", "noise", "code"),
    [(0, 0, 0), (1, 0, 1), (4, 4, 0), (8, 4, 0), (9, 4, 1), (0, 9, 0), (100, 100, 0), (130, 100, 1)],
)
def test_bench_blames_the_steps_only_beyond_the_noise_of_the_machine(misses: int, noise: int, code: int) -> None:
    from leapp.cli.bench import is_late

    assert is_late(misses, noise) == bool(code)


# -- diff


def test_a_bundle_does_not_differ_from_itself(policy: Policy, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = ask(capsys, "diff", policy.path, policy.path)
    assert (code, data["same"], data["changes"]) == (0, True, [])
    assert data["outputs"] == [{"key": "policy/target", "largest": 0.0, "relative": 0.0, "moves": False}]
    assert "No output moves" in read(capsys, "diff", policy.path, policy.path)[1]


def test_diff_tells_weights_and_the_largest_output_difference(
    policy: Policy, retrained: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    code, data = ask(capsys, "diff", policy.path, retrained.path)
    assert code == 1
    assert [c["where"] for c in data["changes"] if c["what"] == "model file"] == ["policy"]
    (weight,) = data["weights"]
    gap = retrained.weight - policy.weight
    assert (weight["node"], weight["value"]) == ("policy", "float32 [3, 3]")
    assert weight["largest"] == pytest.approx(float(gap.abs().max()))
    assert weight["relative"] == pytest.approx(float(gap.norm() / policy.weight.norm()))
    inputs = torch.randn(4, 1, 3, generator=torch.Generator().manual_seed(7))
    expected = (eager(policy, torch.stack(list(inputs))) - eager(retrained, torch.stack(list(inputs)))).abs().max()
    assert data["outputs"][0]["key"] == "policy/target"
    assert data["outputs"][0]["largest"] == pytest.approx(float(expected), rel=1e-3)
    assert data["outputs"][0]["moves"]
    text = read(capsys, "diff", policy.path, retrained.path)[1]
    assert "1 of 1 outputs move: policy/target." in text and f"{float(gap.abs().max()):.4g}" in text


def test_diff_tells_large_integers_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neighbours above 2**53 are equal as float64 numbers."""
    for name, number in (("old", 1 << 60), ("new", (1 << 60) + 1)):
        table = torch.nn.Parameter(torch.tensor([number, 3, 4]), requires_grad=False)
        leapp.start("g", save_path=str(tmp_path / name))
        for _ in range(2):
            x = annotate.input_tensors("n", {"x": torch.randint(0, 9, (3,))})
            annotate.output_tensors("n", {"y": x + table}, export_with="onnx")
        leapp.stop()
        assert leapp.compile_graph(visualize=False) == {"n": True}
    code, data = ask(capsys, "diff", tmp_path / "old" / "g", tmp_path / "new" / "g")
    assert code == 1
    assert [weight["largest"] for weight in data["weights"]] == [1.0]


def test_diff_tells_meaning_wiring_and_settings(policy: Policy, scripted: Policy, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = ask(capsys, "diff", policy.path, scripted.path)
    assert code == 1
    changes = {(c["what"], c["where"]): (c["old"], c["new"]) for c in data["changes"]}
    assert changes["meaning", "filter/q units"] == ("rad", "-")
    assert changes["setting", "frequency"] == (50, "-")
    assert changes["backend", "policy"] == ("onnx", "jit")
    assert changes["feedback", "filter/memory"] == ("-", "filter/memory")


def test_diff_reads_both_spellings_of_units(policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = shutil.copytree(policy.path, tmp_path / "leg")
    text = (copy / "leg.yaml").read_text()
    assert "units: rad" in text
    (copy / "leg.yaml").write_text(text.replace("units: rad", "unit: rad"))
    assert ask(capsys, "diff", policy.path, copy)[1]["changes"] == []
    (copy / "leg.yaml").write_text(text.replace("units: rad", "unit: deg"))
    changes = {(c["where"], c["old"], c["new"]) for c in ask(capsys, "diff", policy.path, copy)[1]["changes"]}
    assert changes == {("filter/q units", "rad", "deg"), ("policy/target units", "rad", "deg")}


# -- check, fuse, view, the rest


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt", "openvino", "isaac-ros"])
def test_check_says_who_can_take_a_bundle(
    policy: Policy, scripted: Policy, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(capsys, "check", "--target", target, policy.path)[0] == 0
    code, data = ask(capsys, "check", "--profile", target, scripted.path)
    assert (code, data["ok"]) == (1, False)
    assert {f["where"] for f in data["findings"] if f["level"] == "error"} >= {"filter", "policy"}


def test_fuse_writes_one_model_that_runs_in_plain_onnxruntime(
    policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnxruntime as ort

    code, data = ask(capsys, "fuse", policy.path, "-o", tmp_path / "leg.onnx")
    assert (code, data["output"]) == (0, str(tmp_path / "leg.onnx"))
    session = ort.InferenceSession(tmp_path / "leg.onnx")
    q = new_inputs(1)[0]
    state = next(i.name for i in session.get_inputs() if i.name != "filter/q")
    (made,) = session.run(["policy/target"], {"filter/q": q.numpy(), state: np.zeros((1, 3), np.float32)})
    np.testing.assert_allclose(made, policy.step(q, torch.zeros(1, 3))[0].numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("backend", ["native", "python"])
def test_deploy_writes_a_repository_that_is_still_the_policy(
    policy: Policy, backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--backend", backend, "--model-version", "3", "--idle-seconds", "5")
    code, data = ask(capsys, "deploy", "triton", policy.path, "-o", tmp_path / "repository", *options)
    assert code == 0 and data["model"] == "leg" and data["stateful"]
    assert set(data["models"]) == ({"leg", "leg.wiring", "leg.filter", "leg.policy"} if backend == "native" else {"leg"})
    assert data["inputs"] == {"filter/q": {"tensor": "filter/q", "data_type": "FP32", "dims": [1, 3]}}
    assert all((tmp_path / "repository" / model / "3").is_dir() for model in data["models"])
    assert ask(capsys, "verify", tmp_path / "repository")[0] == 0
    memory, pipeline = torch.zeros(1, 3), Pipeline(tmp_path / "repository")
    for q in new_inputs(5):
        target, memory = policy.step(q, memory)
        made = pipeline({"filter/q": q.numpy()})["policy/target"]
        np.testing.assert_allclose(made, target.numpy(), rtol=1e-4, atol=1e-6)


def test_deploy_writes_a_header_for_cpp(policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = ask(capsys, "deploy", "cpp", policy.path, "-o", tmp_path)
    assert code == 0 and data["inputs"] == {"filter/q": "q"} and data["outputs"] == {"policy/target": "target"}
    assert f'digest[] = "{data["digest"]}"' in (tmp_path / "leg.hpp").read_text()
    assert main(["deploy", "cpp", str(policy.path), "-o", str(tmp_path), "--instances", "2"]) == 2
    assert "cpp does not take these options, which are for triton: instances." in capsys.readouterr().err


def test_deploy_refuses_on_one_line(policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, said in (
        (("-o", policy.path), "holds the bundle itself"),
        (("-o", tmp_path / "r", "--max-batch-size", "4"), "'filter/q' does not take any batch"),
        (("-o", tmp_path / "r", "--gpus", "0"), "needs kind='gpu'"),
        (("-o", tmp_path / "r", "--gpus", "first"), "not a list of numbers"),
    ):
        assert main(["deploy", "triton", *map(str, (policy.path, *options))]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 and said in lines[0]
    assert list(tmp_path.iterdir()) == []


def told(page: Path) -> dict[str, Any]:
    """The data in a page."""
    found: dict[str, Any] = json.loads(page.read_text().partition('id="data">')[2].partition("</script>")[0])
    return found


def test_view_draws_a_page_and_opens_it(
    policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    code, data = ask(capsys, "view", policy.path)
    assert (code, Path(data["page"]).name) == (0, "leg.html")
    assert opened == [Path(data["page"]).as_uri()]
    assert Path(data["page"]).parent != policy.path
    # What only the export knows is on the new page too.
    exported, drawn = told(policy.path / "leg.html"), told(Path(data["page"]))
    assert exported["validation"] == drawn["validation"] != {}
    for before, after in zip(exported["nodes"], drawn["nodes"], strict=True):
        assert before["ops"] == after["ops"] != [] and before["passed"] is after["passed"] is True
    code, data = ask(capsys, "view", policy.path, "--verify", "--no-open", "--output", tmp_path)
    assert Path(data["page"]) == tmp_path / "leg.html"
    # Both carry the differences from the traced values; times are of the machine that looks, so the sealed one has none.
    sealed, fresh = (told(directory / "leg.html") for directory in (policy.path, tmp_path))
    assert sealed["validation"].keys() == fresh["validation"].keys() != set()
    assert all(found["count"] > 0 and found["largest"] < 1e-4 for found in sealed["validation"].values())
    assert all("seconds" not in node for node in sealed["nodes"]) and all(node["seconds"] > 0 for node in fresh["nodes"])
    assert len(opened) == 1
    assert ask(capsys, "verify", policy.path)[0] == 0


def test_view_plays_a_recording(policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = new_inputs(30)
    np.savez(tmp_path / "in.npz", **{"filter/q": inputs.numpy()})
    assert main(["run", str(policy.path), "--input", str(tmp_path / "in.npz"), "--record", str(tmp_path / "run.npz")]) == 0
    capsys.readouterr()
    code, data = ask(capsys, "view", policy.path, "--no-open", "--recording", tmp_path / "run.npz", "--output", tmp_path)
    assert code == 0
    found = told(Path(data["page"]))
    ports = {p["key"]: p for n in found["nodes"] for p in (*n["inputs"], *n["outputs"])}
    assert found["unit"] == "step"
    np.testing.assert_allclose(np.array(ports["filter/q"]["spark"]["lines"]).T, inputs[:, 0].numpy(), rtol=1e-3)
    made = np.array(ports["policy/target"]["spark"]["lines"]).T
    np.testing.assert_allclose(made, eager(policy, inputs)[:, 0].numpy(), rtol=2e-3, atol=1e-6)
    assert len(ports["filter/memory_in"]["spark"]["lines"][0]) == 30
    code, data = ask(capsys, "view", policy.path, "--no-open", "--recording", tmp_path / "in.npz", "--output", tmp_path)
    assert code == 2 and data["error"].endswith("is not a recording of this bundle: it lacks 'start_ns'")


def test_bench_writes_a_page_with_the_time_of_each_node(
    policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, data = ask(capsys, "bench", policy.path, "--steps", 20, "--page", tmp_path)
    assert code == 0
    assert all(node["seconds"] > 0 for node in told(Path(data["page"]))["nodes"])


def test_schema_is_json_either_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(read(capsys, "schema")[1]) == ask(capsys, "schema")[1]


def test_doctor_lists_versions_and_providers(capsys: pytest.CaptureFixture[str]) -> None:
    code, data = ask(capsys, "doctor")
    assert code == 0
    assert data["packages"]["torch"] == torch.__version__
    assert "CPUExecutionProvider" in data["providers"]


def test_an_unreadable_bundle_is_an_error_on_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("inspect", "verify", "run", "bench", "view"):
        assert main([command, str(tmp_path / "nothing")]) == 2
        error = capsys.readouterr().err
        assert error.startswith("leapp: ")
        assert error.count("\n") == 1
    (tmp_path / "bad.yaml").write_text("models: [")
    code, data = ask(capsys, "inspect", tmp_path / "bad.yaml")
    assert code == 2
    assert data["error"]


def test_wrong_usage_is_an_error_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = (["run", "x", "--steps", "many"], ["check", "x", "--target", "toaster"], ["verify", "x", "--rtol", "nan"])
    for argv in (["nothing"], ["run"], *wrong):
        assert main(argv) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_every_command_keeps_to_the_exit_codes(
    policy: Policy, retrained: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 ok, 1 check failed, 2 error."""
    broken, recording = damaged(policy, tmp_path, "policy.onnx"), tmp_path / "run.npz"
    assert main(["run", str(policy.path), "--record", str(recording)]) == 0
    other = ("check", "--target", "tensorrt")
    table: dict[int, list[tuple[object, ...]]] = {
        0: [("inspect", policy.path), ("verify", policy.path), ("replay", policy.path, recording), (*other, policy.path)],
        1: [
            ("inspect", broken), ("verify", broken), ("replay", retrained.path, recording),
            ("diff", policy.path, retrained.path),
        ],
        2: [
            ("run", broken), ("bench", broken), ("diff", policy.path, broken), ("fuse", broken, "-o", tmp_path / "x.onnx"),
            ("replay", policy.path, tmp_path / "none.npz"), ("inspect", tmp_path / "none"), (*other, tmp_path / "none"),
        ],
    }  # fmt: skip
    for code, commands in table.items():
        for argv in commands:
            assert main([*map(str, argv)]) == code, argv
            assert capsys.readouterr().err.count("\n") == (code == 2), argv
