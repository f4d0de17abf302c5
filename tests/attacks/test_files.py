"""Hostile and damaged bundles: each is refused by name, none is opened, quickly and in little memory."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx.helper as oh
import pytest
import yaml

from leapp.bundle import RawTensor, check_files, load_contract, open_bundle, read_samples
from leapp.bundle.files import hash_file
from leapp.bundle.integrity import seal
from leapp.bundle.onnx_files import external_files
from leapp.bundle.reading import model_file, read_model
from leapp.bundle.safetensors import encode
from leapp.errors import BundleError, LeappError
from tests.bundle.conftest import write

HEAD = "models: {}\npipeline: {data_flow: {}, inputs: {}, outputs: {}}\n"
TAIL = "system information: {leapp config version: '1.3', leapp version: 0.7.2}\n"

YAML_ATTACKS = {
    "python object": "!!python/object/apply:os.system ['true']",
    "python tuple": "!!python/tuple [1]",
    "binary": "!!binary aGk=",
    "set": "!!set {a, b}",
    "explicit text": "!!str 1",
    "local tag": "!evil {a: 1}",
    "non-specific tag": "! x",
    "duplicate key": "{a: 1, a: 2}",
    "duplicate key, other spelling": "{a: 1, 'a': 2}",
    "merge key": "{<<: {a: 1}}",
    "list as key": "{[1]: 2}",
    "mapping as key": "? {a: 1}\n  : 2",
    "alias bomb": "\n"
    + "\n".join(
        ["  l0: &l0 [x, x, x, x, x, x, x, x, x]"] + [f"  l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 12)]
    ),
    "deep aliases": "\n"
    + "\n".join(f"  l{i}: &l{i} {'[' * 36}{f'*l{i - 1}' if i else 'x'}{']' * 36}" for i in range(90)),
    "long aliases": f"\n  a: &a '{'x' * 1_000_000}'\n  b: [{', '.join(['*a'] * 1000)}]",
    "alias of itself": "&a [*a]",
    "alias of nothing": "*nothing",
    "deep flow": "[" * 5000 + "]" * 5000,
    "deep block": "".join("\n" + " " * (i + 2) + "a:" for i in range(200)),
    "many values": "[" + "a," * 300_000 + "]",
    "huge number": "9" * 100_000,
    "huge hexadecimal number": "[0x" + "f" * 100_000 + "]",
    "second document": "1\n---\n2",
    "control characters": "\x00",
    "half a string": "'abc",
    "tab indentation": "\n\ta: 1",
    "bad escape": '"\\xZZ"',
}


@pytest.mark.parametrize("name", YAML_ATTACKS)
def test_yaml_attacks(name, tmp_path):
    path = tmp_path / "g.yaml"
    path.write_text(HEAD + TAIL, encoding="utf-8")
    load_contract(path)
    path.write_text(HEAD + TAIL + "extra: " + YAML_ATTACKS[name] + "\n", encoding="utf-8")
    started = time.process_time()
    with pytest.raises(BundleError, match=r"g\.yaml"):
        load_contract(path)
    assert time.process_time() - started < 2


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"models: \xc3\x28", b"\x00" * 100, b"x" * 5_000_000])
def test_bytes_that_are_no_description(data, tmp_path):
    path = tmp_path / "g.yaml"
    path.write_bytes(data)
    with pytest.raises(BundleError):
        load_contract(path)


def edit(bundle: Path, old: str, new: str) -> None:
    path = bundle / "g.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def reseal(bundle: Path) -> None:
    """What an attacker would do: make the seal fit again."""
    path = bundle / "g.yaml"
    text, _, rest = path.read_text().partition("integrity:")
    files = yaml.safe_load("integrity:" + rest)["integrity"]["files"]
    path.write_text(seal(text, files)[0])


def outside(bundle: Path) -> Path:
    target = bundle.parent / "secret.pt"
    shutil.copy(bundle / "pre.pt", target)
    return target


def point_to(bundle: Path, name: str) -> None:
    edit(bundle, "model_path: pre.pt", f"model_path: {name}")
    reseal(bundle)


def dotdot(bundle: Path) -> None:
    outside(bundle)
    point_to(bundle, "../secret.pt")


def dotdot_inside(bundle: Path) -> None:
    point_to(bundle, "../g/pre.pt")


def absolute(bundle: Path) -> None:
    point_to(bundle, str(outside(bundle)))


def symlink(bundle: Path) -> None:
    target = outside(bundle)
    (bundle / "pre.pt").unlink()
    (bundle / "pre.pt").symlink_to(target)


def symlinked_folder(bundle: Path) -> None:
    outside(bundle)
    (bundle / "sub").symlink_to("..")
    point_to(bundle, "sub/secret.pt")


def hard_link(bundle: Path) -> None:
    target = outside(bundle)
    target.write_text("a secret of this machine")
    (bundle / "pre.pt").unlink()
    os.link(target, bundle / "pre.pt")


def hard_link_changed_from_outside(bundle: Path) -> None:
    os.link(bundle / "pre.pt", bundle.parent / "twin.pt")
    (bundle.parent / "twin.pt").write_text("other")


def symlinked_initial_values(bundle: Path) -> None:
    os.rename(bundle / "g_initial_values.safetensors", bundle.parent / "v.safetensors")
    (bundle / "g_initial_values.safetensors").symlink_to("../v.safetensors")


def symlink_to_itself(bundle: Path) -> None:
    (bundle / "pre.pt").unlink()
    (bundle / "pre.pt").symlink_to("pre.pt")


def fifo_as_initial_values(bundle: Path) -> None:
    (bundle / "g_initial_values.safetensors").unlink()
    os.mkfifo(bundle / "g_initial_values.safetensors")


def fifo_as_description(bundle: Path) -> None:
    (bundle / "g.yaml").unlink()
    os.mkfifo(bundle / "g.yaml")


def symlink_to_a_device(bundle: Path) -> None:
    (bundle / "pre.pt").unlink()
    (bundle / "pre.pt").symlink_to("/dev/zero")


def accents_collision(bundle: Path) -> None:
    shutil.copy(bundle / "pre.pt", bundle / "e\u0301.pt")
    shutil.copy(bundle / "pre.pt", bundle / "\u00e9.pt")
    edit(bundle, "model_path: pre.pt", "model_path: e\u0301.pt")
    edit(bundle, "model_path: pol.pt", "model_path: \u00e9.pt")
    reseal(bundle)


def fifo(bundle: Path) -> None:
    (bundle / "pre.pt").unlink()
    os.mkfifo(bundle / "pre.pt")


def device(bundle: Path) -> None:
    point_to(bundle, "/dev/zero")


def folder(bundle: Path) -> None:
    (bundle / "pre.pt").unlink()
    (bundle / "pre.pt").mkdir()


def the_bundle_itself(bundle: Path) -> None:
    point_to(bundle, ".")


def nul(bundle: Path) -> None:
    point_to(bundle, '"pre\\0.pt"')


def backslash(bundle: Path) -> None:
    point_to(bundle, "'..\\secret.pt'")


def drive(bundle: Path) -> None:
    point_to(bundle, "'C:secret.pt'")


def case_collision(bundle: Path) -> None:
    shutil.copy(bundle / "pre.pt", bundle / "PRE.pt")
    edit(bundle, "model_path: pol.pt", "model_path: PRE.pt")
    reseal(bundle)


def swapped_models(bundle: Path) -> None:
    os.rename(bundle / "pre.pt", bundle / "tmp")
    os.rename(bundle / "pol.pt", bundle / "pre.pt")
    os.rename(bundle / "tmp", bundle / "pol.pt")


def missing_model(bundle: Path) -> None:
    (bundle / "pre.pt").unlink()


def truncated_model(bundle: Path) -> None:
    data = (bundle / "pre.pt").read_bytes()
    (bundle / "pre.pt").write_bytes(data[:-1])


def replaced_initial_values(bundle: Path) -> None:
    (bundle / "g_initial_values.safetensors").write_bytes(encode({"pol/h": RawTensor.of(np.ones(2, np.float32))}))


def missing_initial_values(bundle: Path) -> None:
    (bundle / "g_initial_values.safetensors").unlink()


def initial_values_outside(bundle: Path) -> None:
    os.rename(bundle / "g_initial_values.safetensors", bundle.parent / "v.safetensors")
    edit(bundle, "initial_values: g_initial_values.safetensors", "initial_values: ../v.safetensors")
    reseal(bundle)


def uncovered_initial_values(bundle: Path) -> None:
    shutil.copy(bundle / "g_initial_values.safetensors", bundle / "v.safetensors")
    edit(bundle, "initial_values: g_initial_values.safetensors", "initial_values: v.safetensors")
    reseal(bundle)


def changed_samples(bundle: Path) -> None:
    data = bytearray((bundle / "g_samples.safetensors").read_bytes())
    data[-1] ^= 1
    (bundle / "g_samples.safetensors").write_bytes(data)


def changed_picture(bundle: Path) -> None:
    (bundle / "g.png").write_bytes(b"other")


def edited_yaml(bundle: Path) -> None:
    edit(bundle, "frequency: 50", "frequency: 500")


def seal_cut_off(bundle: Path) -> None:
    path = bundle / "g.yaml"
    path.write_text(path.read_text().partition("integrity:")[0])


def seal_emptied(bundle: Path) -> None:
    seal_cut_off(bundle)
    with (bundle / "g.yaml").open("a") as file:
        file.write("integrity:\n")


def seal_of_another_export(bundle: Path) -> None:
    old = (bundle / "g.yaml").read_text()
    write(bundle, "second")
    (bundle / "g.yaml").write_text(old)


def proc(bundle: Path) -> None:
    point_to(bundle, "/proc/self/maps")


def symlink_to_proc(bundle: Path) -> None:
    (bundle / "pre.pt").unlink()
    (bundle / "pre.pt").symlink_to("/proc/self/environ")


def symlink_through_proc(bundle: Path) -> None:
    target = outside(bundle)
    (bundle / "pre.pt").unlink()
    (bundle / "pre.pt").symlink_to(f"/proc/self/root{target}")


def through_proc(bundle: Path) -> None:
    point_to(bundle, f"/proc/self/root{outside(bundle)}")


def description_in_proc(bundle: Path) -> None:
    (bundle / "g.yaml").unlink()
    (bundle / "g.yaml").symlink_to("/proc/self/status")


def edited_port(bundle: Path) -> None:
    edit(bundle, "dtype: float32", "dtype: int32")


def edited_wiring(bundle: Path) -> None:
    edit(bundle, "pre/y: [pol/x]", "pre/y: [pol/h]")


def added_element_names(bundle: Path) -> None:
    edit(bundle, "      type: tensor\n", "      type: tensor\n      element_names: [[a, b]]\n")


def added_node_key(bundle: Path) -> None:
    edit(bundle, "      backend: jit\n", "      backend: jit\n      more: 1\n")


def added_file(bundle: Path) -> None:
    edit(bundle, "  files:\n", "  files:\n    more.bin: " + "0" * 64 + "\n")


def seal_of_the_future(bundle: Path) -> None:
    edit(bundle, "  version: 2", "  version: 3")


def seal_without_behaviour(bundle: Path) -> None:
    """As if an older leapp had sealed it, which covered everything."""
    document = yaml.safe_load((bundle / "g.yaml").read_text())
    for key in ("version", "behaviour"):
        del document["integrity"][key]
    document["pipeline"]["configs"]["frequency"] = 500
    (bundle / "g.yaml").write_text(yaml.safe_dump(document))


FILE_ATTACKS = [
    symlink_to_itself, hard_link, hard_link_changed_from_outside, fifo, fifo_as_initial_values, fifo_as_description, device,
    symlink_to_a_device, proc, symlink_to_proc, symlink_through_proc, through_proc, description_in_proc, accents_collision,
    folder,
    the_bundle_itself, nul, backslash, drive, case_collision, swapped_models, missing_model, truncated_model,
    replaced_initial_values, missing_initial_values, initial_values_outside, uncovered_initial_values, changed_samples,
    changed_picture, edited_port, edited_wiring, added_element_names, added_node_key, added_file, seal_of_the_future,
    seal_without_behaviour, seal_cut_off, seal_emptied, seal_of_another_export,
]  # fmt: skip


@pytest.mark.parametrize("attack", FILE_ATTACKS)
def test_file_attacks(attack, bundle):
    check_files(open_bundle(bundle / "g.yaml"))
    attack(bundle)
    with pytest.raises(BundleError):
        check_files(open_bundle(bundle / "g.yaml"))


ELSEWHERE = [dotdot, dotdot_inside, absolute, symlink, symlinked_folder, symlinked_initial_values]


@pytest.mark.parametrize("place", ELSEWHERE)
def test_files_elsewhere_are_read_if_they_are_the_sealed_ones(place, bundle):
    model = (bundle / "pre.pt").read_bytes()
    place(bundle)
    opened = open_bundle(bundle / "g.yaml")
    check_files(opened)
    assert read_model(opened, "pre") == model
    for path in (bundle.parent / "secret.pt", bundle.parent / "v.safetensors", bundle / "pre.pt"):
        if path.exists():
            path.write_text("changed")
    with pytest.raises(BundleError, match="checksum"):
        check_files(open_bundle(bundle / "g.yaml"))


def test_unsealed_files_elsewhere_need_consent(bundle):
    symlinked_initial_values(bundle)
    seal_cut_off(bundle)
    with (bundle / "g.yaml").open("a") as file:
        file.write("integrity: unsealed\n")
    with pytest.raises(BundleError, match="allow_outside"):
        open_bundle(bundle)
    open_bundle(bundle, allow_outside=True)


def hugging_face(bundle: Path) -> Path:
    """The bundle as ``snapshot_download`` leaves it: every file a link into a folder of blobs."""
    blobs, snapshot = bundle.parent / "cache" / "blobs", bundle.parent / "cache" / "snapshots" / "g"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(bundle.iterdir())):
        os.rename(path, blobs / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    return snapshot


def test_a_bundle_of_links_is_the_bundle(bundle):
    expected = meaning(bundle)
    snapshot = hugging_face(bundle)
    assert meaning(snapshot) == expected
    (snapshot / "pre.pt").resolve().write_bytes(b"other")
    with pytest.raises(BundleError, match="checksum"):
        meaning(snapshot)


def test_a_link_within_the_bundle_is_fine(bundle):
    os.rename(bundle / "pre.pt", bundle / "real.bin")
    (bundle / "pre.pt").symlink_to("real.bin")
    opened = open_bundle(bundle)
    check_files(opened)
    assert read_model(opened, "pre") == (bundle / "real.bin").read_bytes()


def test_the_digest_can_be_pinned(bundle):
    digest = open_bundle(bundle).digest
    assert open_bundle(bundle, expect_digest=digest).digest == digest
    edited_yaml(bundle)
    assert open_bundle(bundle).seal.annotated
    with pytest.raises(BundleError, match="expected the bundle with digest .* annotations were changed"):
        open_bundle(bundle, expect_digest=digest)
    reseal(bundle)
    open_bundle(bundle)
    with pytest.raises(BundleError, match="expected the bundle with digest"):
        open_bundle(bundle, expect_digest=digest)
    seal_cut_off(bundle)
    with (bundle / "g.yaml").open("a") as file:
        file.write("integrity: unsealed\n")
    assert open_bundle(bundle).digest is None
    with pytest.raises(BundleError, match="no seal"):
        open_bundle(bundle, expect_digest=digest)


def test_a_reformatted_description_keeps_its_digest(bundle):
    digest = open_bundle(bundle).digest
    path = bundle / "g.yaml"
    path.write_text("# deployed\n" + yaml.safe_dump(yaml.safe_load(path.read_text()), sort_keys=True))
    assert open_bundle(bundle).digest == digest


BAD_VALUES = {
    "missing": {},
    "unknown": {"pol/h": np.zeros(2, np.float32), "pol/x": np.zeros(2, np.float32)},
    "shape": {"pol/h": np.zeros((1, 2), np.float32)},
    "dtype": {"pol/h": np.zeros(2, np.float64)},
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_initial_values_that_do_not_fit_are_named(name, bundle):
    path = bundle / "g_initial_values.safetensors"
    path.write_bytes(encode({key: RawTensor.of(value) for key, value in BAD_VALUES[name].items()}))
    text, _, _ = (bundle / "g.yaml").read_text().partition("integrity:")
    (bundle / "g.yaml").write_text(text + "integrity: unsealed\n")
    with pytest.raises(BundleError, match="pol/x" if name == "unknown" else "pol/h"):
        open_bundle(bundle)


def meaning(bundle: Path) -> tuple[object, ...]:
    """What a bundle computes; with its digest and all annotations, unless they are known to be changed."""
    opened = open_bundle(bundle)
    models = [read_model(opened, node) for node in opened.contract.nodes]
    pipeline = msgspec.structs.replace(opened.contract.pipeline, configs=None)
    told = None if opened.seal.annotated else (opened.contract, opened.digest)
    return opened.contract.nodes, pipeline, models, read_samples(opened), told


@pytest.mark.parametrize("name", ["g.yaml", "pre.pt", "g_initial_values.safetensors", "g_samples.safetensors"])
def test_byte_flips_and_truncations(name, bundle):
    """Every damage is refused, or it hit a byte without meaning such as a blank."""
    path = bundle / name
    whole, expected = path.read_bytes(), meaning(bundle)
    choose = random.Random(name)
    survived = 0
    for _ in range(200):
        data = bytearray(whole)
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        path.write_bytes(data)
        try:
            found = meaning(bundle)
            assert found[:-1] == expected[:-1] and found[-1] in (None, expected[-1])
            survived += found[-1] is not None
        except LeappError:
            pass
    assert survived <= (10 if name == "g.yaml" else 0)
    for _ in range(100):
        path.write_bytes(whole[: choose.randrange(len(whole) - 2)])
        with pytest.raises(LeappError):
            meaning(bundle)


def onnx_model(path: Path, location: str) -> None:
    tensor = oh.make_tensor("w", onnx.TensorProto.FLOAT, [2], np.ones(2, np.float32).tobytes(), raw=True)
    value = oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    inner = oh.make_graph(
        [oh.make_node("Constant", [], ["y"], value=tensor)],
        "then",
        [],
        [oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
    )
    nodes = [
        oh.make_node("Constant", [], ["c"], value=oh.make_tensor("c", onnx.TensorProto.BOOL, [], [True])),
        oh.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner),
    ]
    graph = oh.make_graph(nodes, "g", [value], [oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])])
    model = oh.make_model(graph)
    hidden = model.graph.node[1].attribute[0].g.node[0].attribute[0].t
    hidden.ClearField("raw_data")
    hidden.data_location = onnx.TensorProto.EXTERNAL
    hidden.external_data.add(key="location", value=location)
    path.write_bytes(model.SerializeToString())


def test_external_data_is_found_wherever_a_tensor_can_be(tmp_path):
    onnx_model(tmp_path / "m.onnx", "weights.bin")
    data = (tmp_path / "m.onnx").read_bytes()
    assert external_files(data, "m") == ["weights.bin"]
    with pytest.raises(BundleError, match="ONNX"):
        external_files(data[:-1], "m")


@pytest.mark.parametrize("place", ["subgraph", "initializer", "beside its own values", "second graph field"])
def test_external_data_is_found_between_large_weights(tmp_path, place):
    onnx_model(tmp_path / "m.onnx", "weights.bin")
    model = onnx.load_model(tmp_path / "m.onnx", load_external_data=False)
    # The values of a weight may spell anything, a field that names a file included.
    entry = onnx.StringStringEntryProto(key="location", value="decoy.bin").SerializeToString()
    values = (b"\x6a" + bytes([len(entry)]) + entry) * 8000
    weights = [onnx.TensorProto(name=f"w{i}", data_type=onnx.TensorProto.UINT8, raw_data=values) for i in range(2)]
    hidden = onnx.TensorProto(name="h", data_type=onnx.TensorProto.UINT8, data_location=onnx.TensorProto.EXTERNAL)
    hidden.external_data.add(key="location", value="hidden.bin")
    if place == "beside its own values":
        hidden.raw_data = values
    more = onnx.GraphProto(initializer=[weights[0], hidden, weights[1]] if place != "subgraph" else weights)
    if place == "second graph field":
        data = model.SerializeToString() + onnx.ModelProto(graph=more).SerializeToString()
    else:
        model.graph.initializer.extend(more.initializer)
        data = model.SerializeToString()
    want = {"weights.bin"} if place == "subgraph" else {"weights.bin", "hidden.bin"}
    assert set(external_files(data, "m")) == want
    plain = onnx.ModelProto(graph=onnx.GraphProto(initializer=weights))
    assert external_files(plain.SerializeToString(), "m") == []
    assert onnx.ModelProto.FromString(data).graph.initializer[-1].raw_data == values


MEMORY = "*/_ORT_MEM_ADDR_/*"
"""What ONNX Runtime takes for an address in its own memory. A file can have that name."""


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/passwd", "link.bin", "absent.bin", "", "uncovered.bin", MEMORY])
def test_external_data_stays_inside_and_sealed(location, bundle):
    (bundle / "uncovered.bin").write_bytes(b"\0" * 8)
    (bundle.parent / "weights.bin").write_bytes(b"\0" * 8)
    (bundle / "link.bin").symlink_to("../weights.bin")
    (bundle / MEMORY).parent.mkdir(parents=True)
    (bundle / MEMORY).write_bytes(b"\0" * 8)
    onnx_model(bundle / "pre.pt", location)
    text, _, rest = (bundle / "g.yaml").read_text().partition("integrity:")
    files = yaml.safe_load("integrity:" + rest)["integrity"]["files"]
    old, new = files["pre.pt"], hash_file(bundle / "pre.pt")[1]
    text = text.replace(old, new).replace("backend: jit", "backend: onnx", 1)
    covered = {**files, "pre.pt": new}
    if location == MEMORY:
        covered[MEMORY] = hash_file(bundle / MEMORY)[1]
    (bundle / "g.yaml").write_text(seal(text, covered)[0])
    opened = open_bundle(bundle)
    with pytest.raises(BundleError, match="external data of node 'pre'"):
        model_file(opened, "pre")
    if location == "uncovered.bin":
        covered = {**files, "pre.pt": new, location: hash_file(bundle / location)[1]}
        (bundle / "g.yaml").write_text(seal(text, covered)[0])
        assert model_file(open_bundle(bundle), "pre") == (bundle / "pre.pt").resolve()
        (bundle / location).write_bytes(b"\1" * 8)
        with pytest.raises(BundleError, match="checksum"):
            open_bundle(bundle)
