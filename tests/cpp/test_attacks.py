"""Every hostile bundle of ``tests/attacks`` in C++, with sanitizers: refused with the words of Python, or right as there.

What an engine or a library words (``cannot be opened: …``, ``the header is damaged: …``) is compared up to there.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from leapp.bundle import RawTensor, check_files, open_bundle, read_samples
from leapp.bundle.contract_yaml import dump_contract
from leapp.bundle.files import hash_file
from leapp.bundle.integrity import seal
from leapp.bundle.reading import _load
from leapp.bundle.safetensors import encode
from leapp.bundle.sidecars import describe_model
from leapp.errors import BundleError, LeappError
from leapp.graph.contract import Contract, Node, Port, Wiring
from leapp.graph.dtypes import DTYPES
from leapp.runtime import Pipeline
from leapp.runtime.arrays import numpy_dtype
from tests.attacks import test_files as files
from tests.attacks.conftest import bundle
from tests.attacks.test_models import exchange, one, out_of_bounds
from tests.attacks.test_mutants import mutants, noise
from tests.cpp.conftest import call, program
from tests.runtime.bundles import chain, loop, memory

__all__ = ["bundle"]

SOAK = bool(os.environ.get("LEAPP_SOAK"))
DOCUMENTS, MUTANTS, DAMAGES = (20_000, None, 2_000_000) if SOAK else (600, 500, 20_000)


def python_says(mode: str, path: Path) -> tuple[bool, str]:
    """What the Python runtime makes of a bundle, in the form in which the C++ driver answers."""
    try:
        if mode == "contract":
            found = _load(path)
            return True, " ".join([found.digest or "unsealed", *(quoted(name) for name in found.contract.nodes)])
        if mode in ("files", "outside"):
            opened = open_bundle(path, allow_outside=mode == "outside")
            check_files(opened)
            read_samples(opened)
            return True, opened.digest or "unsealed"
        trust = [key for key in mode[7:].split(",") if key] if mode.startswith("signed=") else None
        pipeline = Pipeline(path, trust=trust)
        given = {}
        for key, port in pipeline.input_ports.items():
            dtype = numpy_dtype(port.dtype)
            count = int(np.prod(port.shape, dtype=int))
            given[key] = np.frombuffer(b"\x3f" * count * dtype.itemsize, dtype).reshape(port.shape)
        bits = b""
        for _ in range(3):
            made = pipeline(given)
            bits += b"".join(made[key].tobytes() for key in pipeline.outputs)
        return True, hashlib.sha256(bits).hexdigest()
    except LeappError as error:
        return False, str(error)


def quoted(text: str) -> str:
    import json

    return json.dumps(text)


WORDED_BY_OTHERS = re.compile(
    r"(cannot be opened: |the header is damaged: |: not JSON: |not a public key in PEM |nothing feeds the input |the output '|"
    r"Node .* failed: ).*",
    re.DOTALL,
)
"""Also two sentences in which Python names any one of several ports."""


def alike(ours: tuple[bool, str], theirs: tuple[bool, str]) -> bool:
    """Whether both accept a bundle and say the same of it, or both refuse it in the same words."""
    if ours[0] != theirs[0]:
        return False
    return WORDED_BY_OTHERS.sub(r"\1", ours[1]) == WORDED_BY_OTHERS.sub(r"\1", theirs[1])


def agree(judge, mode: str, path: Path) -> bool:
    """Ask both. Returns whether they accept."""
    ours, theirs = judge(mode, path), python_says(mode, path)
    assert alike(ours, theirs), f"\nC++:    {ours}\nPython: {theirs}"
    return ours[0]


@pytest.mark.parametrize("name", files.YAML_ATTACKS)
def test_yaml_attacks(name, tmp_path, judge):
    path = tmp_path / "g.yaml"
    path.write_text(files.HEAD + files.TAIL, encoding="utf-8")
    assert agree(judge, "contract", path)
    path.write_text(files.HEAD + files.TAIL + "extra: " + files.YAML_ATTACKS[name] + "\n", encoding="utf-8")
    assert not agree(judge, "contract", path)


@pytest.mark.parametrize(
    "data", [b"\xff\xfe\x00", b"models: \xc3\x28", b"\x00" * 100, b"x" * 5_000_000, b"", b"\xef\xbb\xbf[]"]
)
def test_bytes_that_are_no_description(data, tmp_path, judge):
    path = tmp_path / "g.yaml"
    path.write_bytes(data)
    assert not agree(judge, "contract", path)


SCALARS = [
    "0", "-0", "+7", "010", "0o10", "0x1F", "-0x_f", "0b101", "1_000", "190:20:30", "-1:1", "12345678901234567890123",
    "0b_", "0x_", "1.5", "-1.5e+3", "1e3", "1.e+3", ".5", "-.5", "1_0.5", "190:20:30.15", ".inf", "-.INF", ".nan",
    "1e400", "1.0e+400", "1.0e-400", "5.684341886080802e-14", "1.0e+16", "123456789012345680.0", "1.0e-5", "0.0001",
    "4.9e-324", "1.7976931348623157e+308", "-0.0", "yes", "Off", "y", "null", "~", "", "2020-01-01", "=", "0.1",
    "100.0", "1e22", "1.0e+22", "0777", "089", "1__0", "0_", "'quoted'", '"\\u00e9 \\U0001F600 \\x7f \\e"', "é 😀",
    "'1'", "-", ".", "1.2.3", "+.5", "0.30000000000000004", "1:60", "9007199254740993.0",
]  # fmt: skip
"""Numbers, words and text whose meaning the digest has to spell alike in both languages."""


def test_the_digest_spells_every_value_alike(tmp_path, judge):
    path = tmp_path / "g.yaml"
    lines = [f"  - {word}" for word in SCALARS] + [f"  - {{? {word} : 1}}" for word in SCALARS if word]
    text = files.HEAD + files.TAIL + "extra:\n"
    for line in lines:
        document = text + line + "\n"
        try:
            sealed = seal(document, {"a.bin": "0" * 64})[0]
        except BundleError:
            path.write_text(document, encoding="utf-8")
            assert not agree(judge, "contract", path), line
            continue
        path.write_text(sealed, encoding="utf-8")
        assert agree(judge, "contract", path), line


def test_keys_that_python_calls_equal(tmp_path, judge):
    path = tmp_path / "g.yaml"
    outcomes = Counter()
    for keys in (
        "1, 1.0",
        "1, true",
        "0, -0.0",
        "1, '1'",
        ".nan, .nan",
        "1.0e+30, 1000000000000000019884624838656",
        "~, null",
        "a, 'a'",
    ):
        first, second = keys.split(", ")
        path.write_text(f"{files.HEAD}{files.TAIL}extra: {{{first}: 1, {second}: 2}}\n", encoding="utf-8")
        outcomes[agree(judge, "contract", path)] += 1
    assert outcomes == {False: 7, True: 1}


@pytest.mark.parametrize("attack", files.FILE_ATTACKS, ids=lambda attack: attack.__name__)
def test_file_attacks(attack, bundle, judge):
    assert agree(judge, "files", bundle / "g.yaml")
    attack(bundle)
    assert not agree(judge, "files", bundle / "g.yaml")


@pytest.mark.parametrize("place", files.ELSEWHERE, ids=lambda place: place.__name__)
def test_files_elsewhere(place, bundle, judge):
    place(bundle)
    assert agree(judge, "files", bundle / "g.yaml")
    for path in (bundle.parent / "secret.pt", bundle.parent / "v.safetensors", bundle / "pre.pt"):
        if path.exists():
            path.write_text("changed")
    assert not agree(judge, "files", bundle / "g.yaml")


def test_unsealed_files_elsewhere_need_consent(bundle, judge):
    files.symlinked_initial_values(bundle)
    files.seal_cut_off(bundle)
    with (bundle / "g.yaml").open("a") as file:
        file.write("integrity: unsealed\n")
    assert not agree(judge, "files", bundle / "g.yaml")
    assert agree(judge, "outside", bundle / "g.yaml")


def test_a_bundle_of_links_is_the_bundle(bundle, judge):
    snapshot = files.hugging_face(bundle)
    assert agree(judge, "files", snapshot)
    (snapshot / "pre.pt").resolve().write_bytes(b"other")
    assert not agree(judge, "files", snapshot)


def test_annotations_may_change_and_the_digest_says_so(bundle, judge):
    files.edited_yaml(bundle)
    assert agree(judge, "files", bundle / "g.yaml")
    path = bundle / "g.yaml"
    path.write_text("# deployed\n" + yaml.safe_dump(yaml.safe_load(path.read_text()), sort_keys=True))
    assert agree(judge, "files", path)


@pytest.mark.parametrize("name", files.BAD_VALUES)
def test_initial_values_that_do_not_fit(name, bundle, judge):
    path = bundle / "g_initial_values.safetensors"
    path.write_bytes(encode({key: RawTensor.of(value) for key, value in files.BAD_VALUES[name].items()}))
    text, _, _ = (bundle / "g.yaml").read_text().partition("integrity:")
    (bundle / "g.yaml").write_text(text + "integrity: unsealed\n")
    assert not agree(judge, "files", bundle / "g.yaml")


@pytest.mark.parametrize("name", ["g.yaml", "pre.pt", "g_initial_values.safetensors", "g_samples.safetensors"])
@pytest.mark.parametrize("sealed", [True, False])
def test_byte_flips_and_truncations(name, sealed, bundle, judge):
    if not sealed:
        text, _, _ = (bundle / "g.yaml").read_text().partition("integrity:")
        (bundle / "g.yaml").write_text(text + "integrity: unsealed\n")
    path = bundle / name
    whole, choose = path.read_bytes(), random.Random(name)
    for number in range(150):
        data = bytearray(whole)
        if number % 3:
            data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        else:
            data = data[: choose.randrange(len(data) - 2)]
        path.write_bytes(data)
        agree(judge, "files", bundle / "g.yaml")


@pytest.mark.parametrize(
    "location", ["../weights.bin", "/etc/passwd", "link.bin", "absent.bin", "", "uncovered.bin", files.MEMORY, "w.bin"]
)
def test_external_data(location, bundle, judge):
    for name in ("uncovered.bin", "w.bin", "../weights.bin", "../../elsewhere.bin"):
        (bundle / name).write_bytes(b"\0" * 8)
    (bundle / "link.bin").symlink_to("../../elsewhere.bin")
    (bundle / files.MEMORY).parent.mkdir(parents=True)
    (bundle / files.MEMORY).write_bytes(b"\0" * 8)
    files.onnx_model(bundle / "pre.pt", location)
    text, _, rest = (bundle / "g.yaml").read_text().partition("integrity:")
    covered = yaml.safe_load("integrity:" + rest)["integrity"]["files"]
    old, new = covered["pre.pt"], hash_file(bundle / "pre.pt")[1]
    covered |= {"pre.pt": new, "w.bin": hash_file(bundle / "w.bin")[1]}
    text = text.replace(old, new).replace("backend: jit", "backend: onnx", 1)
    (bundle / "g.yaml").write_text(seal(text, covered)[0])
    assert agree(judge, "files", bundle / "g.yaml") == (location == "w.bin")


def test_names_that_some_systems_take_for_one(tmp_path, judge):
    """The table of characters behind this is written by ``scripts/cpp_fold.py``."""
    pairs = [
        "Ä.onnx ä.onnx",
        "e\u0301 é",
        "ẞ ss",
        "Σ ς",
        "가 \u1100\u1161",
        "K k",
        "привод ПРИВОД",
        "привод датчик",
        "é è",
        "感知 控制",
        "a b",
    ]
    outcomes = Counter()
    for pair in pairs:
        folder = tmp_path / str(sum(outcomes.values()))
        first, second = pair.split(" ")
        text = files.HEAD + files.TAIL
        sealed, _ = seal(text, {first: hashlib.sha256(b"").hexdigest(), second: hashlib.sha256(b"").hexdigest()})
        folder.mkdir()
        (folder / "g.yaml").write_text(sealed, encoding="utf-8")
        for name in (first, second):
            (folder / name).touch()
        ours, theirs = judge("files", folder / "g.yaml"), python_says("files", folder / "g.yaml")
        assert ours[0] == theirs[0], pair
        outcomes[ours[0]] += 1
    assert outcomes == {False: 7, True: 4}


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    return loop(tmp_path_factory.mktemp("bundle"), "onnx", "onnx")


def label(text: str) -> str:
    """Python runs neighbouring ONNX nodes as one and names both; C++ runs each by itself."""
    return re.sub(r"node ('.*?')( \+ '.*?')*", "node", text)


def test_single_field_mutants(original, judge):
    document = yaml.safe_load(original.read_text())
    cases = mutants(document)
    chosen = cases if MUTANTS is None else random.Random(7).sample(cases, MUTANTS)
    path = original.with_name("mutant.yaml")
    outcomes: Counter[str] = Counter()
    for name, changed in chosen:
        path.write_text(yaml.safe_dump(changed, sort_keys=False))
        ours, theirs = judge("run", path), python_says("run", path)
        assert ours[0] == theirs[0], f"{name}\nC++:    {ours}\nPython: {theirs}"
        same = ours == theirs if ours[0] else alike((False, label(ours[1])), (False, label(theirs[1])))
        outcomes["right" if ours[0] else "refused"] += 1
        if same:
            continue
        # ONNX models are told apart by name in C++ and as one merged model in Python.
        worded = ours[1].startswith("The ONNX model of node") or "backend" in ours[1]
        assert not ours[0] and worded, f"{name}\nC++:    {ours}\nPython: {theirs}"
        outcomes["other words"] += 1
    assert outcomes["refused"] > 0.8 * len(chosen) and outcomes["right"] > 0, outcomes
    assert outcomes["other words"] < 0.1 * len(chosen), outcomes


def test_fuzzed_documents(original, judge):
    text = original.read_text()
    document = yaml.safe_load(text)
    path = original.with_name("fuzzed.yaml")
    outcomes: Counter[bool] = Counter()
    for seed in range(DOCUMENTS):
        path.write_text(noise(text, document, random.Random(seed)), encoding="utf-8", errors="replace", newline="")
        outcomes[agree(judge, "contract", path)] += 1
    assert min(outcomes[True], outcomes[False]) > DOCUMENTS // 10, outcomes


def test_models_that_are_no_onnx(tmp_path, judge):
    for given in ("onnx", "jit", "pt2"):
        for said in ("onnx", "jit", "pt2"):
            folder = tmp_path / f"{given} {said}"
            path = one(folder, given)
            path.write_text(path.read_text().replace(f"backend: {given}", f"backend: {said}"))
            accepted, words = judge("run", path)
            assert accepted == (given == said == "onnx"), words
            if said != "onnx":
                assert words == f"Node 'p' has the backend '{said}'; this runtime runs onnx."


def test_swapped_models_and_changed_values(tmp_path, judge):
    path, _ = chain(tmp_path / "chain", ["onnx", "onnx"])
    assert agree(judge, "run", path)
    first, second = path.parent / "n0.onnx", path.parent / "n1.onnx"
    shutil.move(first, tmp_path / "kept")
    shutil.move(second, first)
    shutil.move(tmp_path / "kept", second)
    assert not agree(judge, "run", path)
    path = memory(tmp_path / "memory", "onnx")
    assert agree(judge, "run", path)
    for value in (np.zeros(3, np.float32), np.zeros(2, np.float64), np.zeros((2, 1), np.float32)):
        (path.parent / "g_initial_values.safetensors").write_bytes(encode({"p/h_in": RawTensor.of(value)}))
        assert not agree(judge, "run", path)


@pytest.mark.parametrize("shape", ["[1099511627776]", "[1, 1099511627776]", "[4, 1]", "[]", "[1, 4, 0]"])
def test_shapes_that_do_not_fit(shape, tmp_path, judge):
    path = one(tmp_path, "onnx")
    path.write_text(path.read_text().replace("shape: [1, 4]", f"shape: {shape}", 1))
    assert not agree(judge, "run", path)


def test_damaged_onnx_models(tmp_path, judge):
    """Flipped bytes in a model whose checksum fits: the engine's business, but the process lives and answers."""
    path, choose = one(tmp_path, "onnx"), random.Random(0)
    whole = (path.parent / "p.onnx").read_bytes()
    outcomes: Counter[bool] = Counter()
    for _ in range(100):
        data = bytearray(whole)
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        exchange(path, "p.onnx", bytes(data))
        ours, theirs = judge("run", path), python_says("run", path)
        assert ours[0] == theirs[0], f"\nC++:    {ours}\nPython: {theirs}"
        outcomes[ours[0]] += 1
    assert outcomes[False] > 15 and outcomes[True] > 15, outcomes


def test_the_log_of_an_engine_does_not_reach_a_terminal(tmp_path):
    path = one(tmp_path, "onnx")
    exchange(path, "p.onnx", out_of_bounds((path.parent / "p.onnx").read_bytes(), "\x1b]0;owned\x07"))
    driver = program("driver", sanitized=True)
    done = subprocess.run([driver, "try"], input=f"run {path}\n", capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("refused") and "Gather" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_external_weights_are_run(tmp_path, judge):
    import onnx

    path = one(tmp_path, "onnx")
    model = onnx.load(tmp_path / "p.onnx")
    onnx.save(model, tmp_path / "q.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    model_bytes = (tmp_path / "q.onnx").read_bytes()
    torch.manual_seed(0)
    text = path.read_text().partition("integrity:")[0].replace("model_path: p.onnx", "model_path: q.onnx")
    text = text.replace(hash_file(tmp_path / "p.onnx")[1], hash_file(tmp_path / "q.onnx")[1])
    path.write_text(seal(text, {name: hash_file(tmp_path / name)[1] for name in ("q.onnx", "w.bin")})[0])
    assert agree(judge, "run", path)
    right, data = judge("run", path), bytearray((tmp_path / "w.bin").read_bytes())
    # Another process exchanges the files after they were verified: what was verified runs.
    assert judge("swap", path) == right
    assert {(tmp_path / name).read_bytes() for name in ("q.onnx", "w.bin")} == {b"swapped"}
    assert not agree(judge, "run", path)
    (tmp_path / "q.onnx").write_bytes(model_bytes)
    data[5] ^= 1
    (tmp_path / "w.bin").write_bytes(data)
    assert not agree(judge, "run", path)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype(dtype, tmp_path, judge):
    """A model that returns its input and keeps it as state. What ONNX Runtime cannot take is refused by both."""
    import onnx.helper as oh

    code, shape = DTYPES[dtype].onnx, (2, 3)
    values = [oh.make_tensor_value_info(name, code, shape) for name in ("x", "h_in", "y", "h_out")]
    nodes = [oh.make_node("Identity", ["x"], ["h_out"]), oh.make_node("Identity", ["h_in"], ["y"])]
    graph = oh.make_graph(nodes, "g", values[:2], values[2:])
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 24)], ir_version=11)
    (tmp_path / "p.onnx").write_bytes(model.SerializeToString())
    ports = [Port(name=value.name, dtype=dtype, shape=shape) for value in values]
    node = Node(inputs=tuple(ports[:2]), outputs=tuple(ports[2:]), model=describe_model(tmp_path / "p.onnx", tmp_path, "onnx"))
    wiring = Wiring(feedback_flow={"p/h_out": ("p/h_in",)}, inputs={"p": ("x",)}, outputs={"p": ("y",)})
    contract = Contract(nodes={"p": node}, pipeline=wiring, system={"leapp config version": "1.3"})
    (tmp_path / "g.yaml").write_text(seal(dump_contract(contract), {"p.onnx": hash_file(tmp_path / "p.onnx")[1]})[0])
    accepted = agree(judge, "run", tmp_path / "g.yaml")
    assert accepted or "complex" in dtype or dtype == "float8_e8m0fnu"


def test_damage_without_end(bundle, original):
    """A loop of its own in C++ over what the parsers read: descriptions, tensors, models."""
    seeds = [bundle / "g.yaml", original, bundle / "g_samples.safetensors", bundle / "g_initial_values.safetensors"]
    models = sorted(original.parent.glob("*.onnx"))
    assert call(program("mutate", sanitized=True), 1, DAMAGES, *seeds, *models).startswith(str(DAMAGES))
