"""Bundles that other tools and people edit after the export: what runs on, what is refused, and how to seal anew."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from leapp import InferenceManager
from leapp.bundle import open_bundle
from leapp.cli import main
from leapp.errors import BundleError
from leapp.runtime import Pipeline

from .conftest import Policy


@pytest.fixture
def copy(policy: Policy, tmp_path: Path) -> Path:
    return Path(shutil.copytree(policy.path, tmp_path / "leg"))


def rewrite(bundle: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """What tools do: load, change, dump."""
    path = bundle / "leg.yaml"
    document = yaml.safe_load(path.read_text())
    change(document)
    path.write_text(yaml.safe_dump(document, sort_keys=False))


def frequency(document: dict[str, Any]) -> None:
    document["pipeline"]["configs"]["frequency"] = 200


def configs(document: dict[str, Any]) -> None:
    document["pipeline"].pop("configs")


def own_block(document: dict[str, Any]) -> None:
    document["wbc_agile"] = {"robot": "g1", "gains": {"hip": [100.0, 2.0]}}


def source_of_inputs(document: dict[str, Any]) -> None:
    for node in document["models"].values():
        for port in node["inputs"]:
            port["source"] = port["name"]


def other_units(document: dict[str, Any]) -> None:
    document["models"]["filter"]["inputs"][0]["units"] = "deg"


def other_system(document: dict[str, Any]) -> None:
    document["system information"]["deployed by"] = "ci"
    del document["system information"]["leapp config version"]


ANNOTATED = [frequency, configs, own_block, source_of_inputs, other_units]


def runs_as_traced(path: Path, policy: Policy) -> None:
    pipeline, memory = Pipeline(path), torch.zeros(1, 3)
    manager = InferenceManager(str(path / "leg.yaml"))
    generator = torch.Generator().manual_seed(11)
    for _ in range(4):
        q = torch.randn(1, 3, generator=generator)
        want, memory = policy.step(q, memory)
        np.testing.assert_allclose(pipeline({"filter/q": q.numpy()})["policy/target"], want.numpy(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(manager.run_policy({"filter/q": q})["policy/target"], want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("change", ANNOTATED)
def test_annotated_bundles_run_on(change, copy: Path, policy: Policy, capsys: pytest.CaptureFixture[str]) -> None:
    digest = open_bundle(copy).digest
    rewrite(copy, change)
    runs_as_traced(copy, policy)
    with pytest.raises(BundleError, match="expected the bundle with digest"):
        Pipeline(copy, expect_digest=digest)
    assert Pipeline(copy, expect_digest=open_bundle(copy).digest)
    assert main(["verify", str(copy)]) == 0
    assert "annotations were changed" in capsys.readouterr().out


def test_a_missing_version_is_a_warning(copy: Path, policy: Policy) -> None:
    rewrite(copy, other_system)
    with pytest.warns(UserWarning, match="'leapp config version' is missing"):
        runs_as_traced(copy, policy)


def test_the_command_line_shows_a_warning_as_one_sentence(copy: Path) -> None:
    rewrite(copy, other_system)
    command = [sys.executable, "-m", "leapp", "inspect", "--quick", str(copy)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    missing = "leg.yaml: 'leapp config version' is missing in 'system information'; read as version 1.0."
    assert shown == f"leapp: warning: {missing}\n"


def test_inspect_shows_annotations_and_says_that_they_are_not_sealed(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(copy)]) == 0
    before = capsys.readouterr().out
    assert "annotations were changed" not in before
    rewrite(copy, own_block)
    rewrite(copy, source_of_inputs)
    assert main(["inspect", str(copy)]) == 0
    text = capsys.readouterr().out
    assert "annotations were changed after it was sealed" in text
    table = text.partition("Annotations, which no seal covers\n")[2]
    for row in (["wbc_agile", "robot", "g1"], ["pipeline.configs", "frequency", "50"], ["filter.inputs.q", "source", "q"]):
        assert row in [line.split() for line in table.splitlines()]
    assert main(["inspect", str(copy), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["annotated"] is True
    assert data["annotations"]["wbc_agile"]["gains"] == {"hip": [100.0, 2.0]}


def dtype(document: dict[str, Any]) -> None:
    document["models"]["filter"]["inputs"][0]["dtype"] = "float64"


def element_names(document: dict[str, Any]) -> None:
    document["models"]["filter"]["inputs"][0]["element_names"][0].reverse()


def kind(document: dict[str, Any]) -> None:
    document["models"]["policy"]["outputs"][0]["kind"] = "target/joint/effort"


def feedback(document: dict[str, Any]) -> None:
    document["pipeline"]["feedback_flow"] = {}
    document["pipeline"]["inputs"]["filter"].append("memory_in")


def model(document: dict[str, Any]) -> None:
    document["models"]["policy"]["parameters"]["backend"] = "jit"


@pytest.mark.parametrize("change", [dtype, element_names, kind, feedback, model])
def test_what_decides_behaviour_is_sealed(change, copy: Path) -> None:
    rewrite(copy, change)
    with pytest.raises(BundleError):
        open_bundle(copy)


def test_an_edit_by_hand_can_be_sealed_anew(copy: Path, policy: Policy, capsys: pytest.CaptureFixture[str]) -> None:
    path = copy / "leg.yaml"
    text = path.read_text().replace("models:\n", "# gains of March\nmodels:\n", 1)
    path.write_text(text.replace("name: q\n", "name: position\n").replace("[q]", "[position]"))
    with pytest.raises(BundleError, match=r"leapp seal leg\.yaml"):
        open_bundle(copy)
    path.write_text(text.replace("kind: state/joint/position", "kind: my/kind"))
    with pytest.raises(BundleError, match=r"leapp seal leg\.yaml"):
        open_bundle(copy)
    assert main(["seal", str(copy)]) == 0
    digest = open_bundle(copy).digest
    assert digest in capsys.readouterr().out
    assert path.read_text().startswith("# gains of March\n")
    assert not open_bundle(copy, expect_digest=digest).seal.annotated
    assert open_bundle(copy).contract.nodes["filter"].inputs[0].kind == "my/kind"
    assert set(open_bundle(copy).files) == set(open_bundle(policy.path).files)
    runs_as_traced(copy, policy)
    assert sorted(os.listdir(copy)) == sorted(os.listdir(policy.path))


@pytest.mark.parametrize("ending", ["integrity: unsealed\n", ""])
def test_a_bundle_without_a_seal_can_be_sealed(ending: str, copy: Path, policy: Policy) -> None:
    path = copy / "leg.yaml"
    path.write_text(path.read_text().partition("integrity:")[0] + ending)
    assert main(["seal", str(path)]) == 0
    opened = open_bundle(copy)
    assert {"filter.onnx", "policy.onnx", "leg_initial_values.safetensors", "leg_samples.safetensors"} <= set(opened.files)
    runs_as_traced(copy, policy)


@pytest.mark.parametrize("name", ["policy.onnx", "leg_initial_values.safetensors", "leg.png"])
def test_a_changed_file_is_not_sealed(name: str, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray((copy / name).read_bytes())
    data[-1] ^= 1
    (copy / name).write_bytes(data)
    before = (copy / "leg.yaml").read_bytes()
    assert main(["seal", str(copy)]) == 2
    assert "was changed or damaged" in capsys.readouterr().err
    assert (copy / "leg.yaml").read_bytes() == before


def test_seals_of_earlier_versions_hold_for_every_key(copy: Path, policy: Policy) -> None:
    def as_before(document: dict[str, Any]) -> None:
        del document["integrity"]["version"], document["integrity"]["behaviour"]

    rewrite(copy, as_before)
    assert open_bundle(copy).digest == open_bundle(policy.path).digest
    runs_as_traced(copy, policy)
    rewrite(copy, frequency)
    with pytest.raises(BundleError, match="leapp seal"):
        open_bundle(copy)


def test_a_bundle_of_links_runs(policy: Policy, tmp_path: Path) -> None:
    """As ``colcon build --symlink-install`` and the cache of Hugging Face leave it."""
    links = tmp_path / "install"
    links.mkdir()
    for path in policy.path.iterdir():
        (links / path.name).symlink_to(path)
    runs_as_traced(links, policy)
    assert main(["verify", str(links)]) == 0
