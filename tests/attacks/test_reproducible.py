"""The same export gives the same bytes: in two processes, on two paths, with other hashes and clocks. What it is made of."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from leapp.bundle import open_bundle
from leapp.bundle.sbom import describe_origin
from leapp.cli import main
from leapp.errors import BundleError
from tests.warm import run_program

PROGRAM = '''
import sys, torch, leapp
from leapp import annotate
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
h = torch.zeros(1, 3)
leapp.start("g", save_path=sys.argv[1])
for _ in range(3):
    x = annotate.input_tensors("a", {"x": torch.randn(1, 3)})
    y = torch.tanh(x * 2.0) + net(x)
    annotate.output_tensors("a", {"y": y}, export_with="onnx")
    y2, h2 = annotate.input_tensors("b", {"y": y, "h": h})
    h = torch.nn.functional.normalize(y2 + 0.5 * h2)
    annotate.output_tensors("b", {"z": h * 3, "h": h}, export_with="jit")
    z = annotate.input_tensors("c", {"z": h * 3})
    annotate.output_tensors("c", {"u": z.sin() @ net[0].weight.T}, export_with="pt2")
leapp.stop()
leapp.compile_graph(sbom="Apache-2.0")
'''
DIFFERS = {"log.txt"}
"""What differs on purpose; docs/format.md lists the same."""


def test_the_same_export_gives_the_same_bytes(tmp_path: Path) -> None:
    found = []
    for number, zone in enumerate(("UTC", "Asia/Tokyo")):
        place = tmp_path / ("x" * (1 + 30 * number))
        (place / "code").mkdir(parents=True)
        (place / "code" / "policy.py").write_text(PROGRAM)
        environment = {**os.environ, "PYTHONHASHSEED": str(number + 1), "TZ": zone}
        command = [sys.executable, "policy.py", str(place / "out")]
        subprocess.run(command, cwd=place / "code", env=environment, check=True, capture_output=True)
        bundle = place / "out" / "g"
        found.append({path.name: path.read_bytes() for path in bundle.iterdir()})
        shutil.rmtree(place)
    first, second = found
    assert first.keys() == second.keys()
    assert {"a.onnx", "b.pt", "c.pt2", "g.yaml", "g_samples.safetensors", "g.cdx.json"} <= first.keys()
    assert {name for name, data in first.items() if data != second[name]} <= DIFFERS


def test_the_bill_of_materials_says_what_is_there(tmp_path: Path) -> None:
    """At export: sealed, with the commit of the program. Later: the same parts, from the description."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "policy.py").write_text(PROGRAM)
    for words in (["init", "-q"], ["add", "policy.py"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=tmp_path / "code", check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path / "code", capture_output=True, text=True, check=True)
    run_program(tmp_path / "code" / "policy.py", tmp_path / "code", str(tmp_path))
    bundle = open_bundle(tmp_path / "g")
    assert "g.cdx.json" in bundle.files
    written = json.loads((tmp_path / "g" / "g.cdx.json").read_text())
    assert main(["sbom", str(tmp_path / "g"), "--licence", "Apache-2.0", "-o", str(tmp_path / "later.json")]) == 0
    later = json.loads((tmp_path / "later.json").read_text())
    for document in (written, later):
        assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
        parts = {part["bom-ref"]: part for part in document["components"]}
        for name, node in bundle.contract.nodes.items():
            assert parts[f"model:{name}"]["hashes"] == [{"alg": "SHA-256", "content": node.model.sha256sum}]
        for name in ("g_samples.safetensors", "g_initial_values.safetensors"):
            assert parts[f"file:{name}"]["hashes"] == [{"alg": "SHA-256", "content": bundle.files[name]}]
        assert parts["library:torch"]["version"] == torch.__version__
        assert {"name": "leapp:opset_version", "value": "20"} in parts["model:a"]["properties"]
        assert document["metadata"]["component"]["licenses"] == [{"expression": "Apache-2.0"}]
        assert document["dependencies"][0]["dependsOn"] == list(parts)
    assert written["serialNumber"] == later["serialNumber"]
    facts = {one["name"]: one["value"] for one in written["metadata"]["component"]["properties"]}
    assert facts["leapp:commit"] == head.stdout.strip()
    assert {part["name"] for part in written["components"] if part["type"] == "library"} >= {"onnxruntime", "torch", "leapp"}
    (tmp_path / "g" / "g.cdx.json").write_text("{}")
    with pytest.raises(BundleError, match="checksum mismatch"):
        open_bundle(tmp_path / "g")


ADDRESSES = {
    "https://example.org/a.git": True, "git@example.org:a.git": True, "https://me:secret@example.org/a.git": False,
    "/home/me/a": False, "file:///home/me/a": False, "../a": False,
}  # fmt: skip


@pytest.mark.parametrize(("address", "named"), ADDRESSES.items())
def test_only_addresses_of_use_to_others_are_named(address: str, named: bool, tmp_path: Path) -> None:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    commit = [*author, "commit", "-q", "--allow-empty", "-m", "a"]
    for words in (["init", "-q"], ["remote", "add", "origin", address], commit):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    found = describe_origin(tmp_path, {})
    assert found.commit is not None
    assert found.repository == (address if named else None)
