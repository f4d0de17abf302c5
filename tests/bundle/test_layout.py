"""The YAML: byte for byte in its layout, and back to the same contract."""

from __future__ import annotations

import textwrap

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from leapp.bundle import load_contract, open_bundle
from leapp.bundle.contract_yaml import contract_of, dump_contract
from leapp.bundle.schema import schema
from leapp.bundle.yaml_text import dump, parse
from leapp.errors import BundleError, BundleFileError
from leapp.graph.contract import Contract, ModelFile, Node, Port, Wiring

SYSTEM = """\
system information:
  cuda version: None
  leapp config version: '1.3'
  leapp version: 0.7.2
  os: Debian GNU/Linux 12
  python version: 3.11.7
  torch version: 2.13.0+cpu
  warp version: null

"""
SHA = "6e489bbca7ea066ef79b793ad9efaaf3942487587d1f4a85697fcfa1af762c92"
MD5 = "540ec256870a32157fe80214db635524"


def port(name: str, shape: str = "[4]", *more: str) -> str:
    lines = [f"- name: {name}", "  dtype: float32", f"  shape: {shape}", "  type: tensor"]
    return "\n".join([*lines, *(f"  {line}" for line in more)]) + "\n"


def node(name: str, inputs: str, outputs: str, file: str, backend: str, *more: str) -> str:
    sums = ("null", "null") if file == "null" else (MD5, SHA)
    lines = [f"model_path: {file}", f"md5sum: {sums[0]}", f"sha256sum: {sums[1]}", f"backend: {backend}"]
    parameters = "\n".join([*lines, "warp_segments: 0", *more]) + "\n"
    body = f"inputs:\n{inputs}outputs:\n{outputs}parameters:\n{textwrap.indent(parameters, '  ')}"
    return f"  {name}:\n{textwrap.indent(body, '    ')}"


TEXTS = {
    "chain": "models:\n"
    + node("pre", port("a") + port("b"), port("f"), "pre.pt", "jit")
    + node("pol", port("feat"), port("act", "[2]"), "pol.onnx", "onnx", "opset_version: 20")
    + """
pipeline:
  data_flow:
    pre/f: [pol/feat]
  feedback_flow: {}
  inputs:
    pre: [a, b]
  outputs:
    pol: [act]

""",
    "feedback": "models:\n"
    + node("p", port("obs") + port("mem"), port("c") + port("a"), "p.pt", "jit")
    + node("f", port("c") + port("prev"), port("mo"), "f.pt2", "pt2", "torch_version: 2.13.0+cpu")
    + """
pipeline:
  data_flow:
    p/c: [f/c]
  feedback_flow:
    f/mo: [p/mem, f/prev]
  initial_values: re_initial_values.safetensors
  inputs:
    p: [obs]
  outputs:
    p: [a]

""",
    "meaning": "models:\n"
    + node(
        "p",
        port("jp", "[1, 3]", "kind: state/joint/position", "element_names: [[a, b, c]]", "units: rad", "frame: base")
        + port("jv", "[1, 3]", "kind: custom/kind", "element_names: [null, [a, b, c]]")
        + port("s", "[]", "limits:", "- -1", "- 1.5", "note: 'on'", "'1': [] ", "d: {}").replace("[] \n", "[]\n"),
        port(
            "act",
            "[4, 3]",
            "kind: target/joint/torques",
            "element_names: [__temporal_axis__, [hip, knee, ankle]]",
            "temporal_period_ms: 100",
        )
        + port("größe", "[3]", "kind: kp"),
        "sub/p.pt",
        "jit",
    )
    + """
pipeline:
  configs:
    frequency: 50
    runtime: isaac
    skip-first-run: true
  data_flow: {}
  feedback_flow: {}
  inputs:
    p: [jp, jv, s]
  outputs:
    p: [act, größe]

""",
    "no models": "models:\n"
    + node("a", port("x", "[2]"), port("y", "[2]"), "null", "null")
    + node("b", port("y", "[2]"), port("z", "[2]"), "../../byom/mine.pt", "jit")
    + """
pipeline:
  data_flow:
    a/y: [b/y]
  feedback_flow: {}
  inputs:
    a: [x]
  outputs:
    b: [z]

""",
}


@pytest.mark.parametrize("name", TEXTS)
def test_read_and_written_again_is_the_same_text(name, tmp_path):
    text = TEXTS[name] + SYSTEM
    path = tmp_path / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    contract = load_contract(path)
    assert dump_contract(contract) == text
    assert yaml.safe_load(dump_contract(contract)) == yaml.safe_load(text)


def test_the_values_of_a_read_contract():
    text = TEXTS["meaning"] + SYSTEM
    contract = contract_of(parse(text, "m"), "m", text)
    jp, _, s = contract.nodes["p"].inputs
    assert (jp.shape, jp.kind, jp.element_names) == ((1, 3), "state/joint/position", [["a", "b", "c"]])
    assert jp.extra == {"units": "rad", "frame": "base"}
    assert s.shape == () and s.extra == {"limits": [-1, 1.5], "note": "on", "1": [], "d": {}}
    assert contract.nodes["p"].outputs[0].temporal_period_ms == 100
    assert contract.pipeline.configs == {"frequency": 50, "runtime": "isaac", "skip-first-run": True}
    assert contract.system["cuda version"] == "None"


text_values = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | text_values
plain_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text_values, inner, max_size=3), max_leaves=6
)
names = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/"), min_size=1, max_size=12)
names |= st.sampled_from(["null", "yes", "1", "1.5", "~", "<<", "=", "2024-01-01", "0x1f", "1:30", "- a", "a: b", "#"])
reserved = {"name", "dtype", "shape", "type", "kind", "element_names", "temporal_period_ms"}


@settings(max_examples=150, deadline=None)
@given(
    names,
    names,
    st.dictionaries(names.filter(lambda n: n not in reserved), plain_values, max_size=3),
    st.none() | st.lists(st.none() | st.lists(names, max_size=4), max_size=3),
    st.dictionaries(names, plain_values, max_size=3),
)
def test_any_contract_survives(node_name, port_name, extra, element_names, configs):
    described = Port(name=port_name, dtype="int8", shape=(3, 0), kind=port_name, element_names=element_names, extra=extra)
    contract = Contract(
        nodes={node_name: Node(inputs=(described,), outputs=(described,), model=ModelFile(extra={"opset_version": 20}))},
        pipeline=Wiring(inputs={node_name: (port_name,)}, outputs={node_name: (port_name,)}, configs=configs),
        system={"leapp config version": "1.3", "leapp version": "0.7.2"},
    )
    text = dump_contract(contract)
    assert contract_of(parse(text, "t"), "t", text) == contract
    assert yaml.safe_load(text)["models"][node_name]["inputs"][0]["name"] == port_name


class Reference(yaml.SafeDumper):
    def ignore_aliases(self, data):
        return True


# Line separators and marks are written escaped, on purpose.
letters = st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp"), exclude_characters="\ufeff")
printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=120) | st.text(letters, max_size=12)
printable_values = st.recursive(
    printable | st.floats() | st.none() | st.booleans() | st.integers(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(printable, inner, max_size=5),
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(printable, printable_values, min_size=1, max_size=4))
def test_text_is_laid_out_by_one_rule_however_it_is_written(value):
    expected = yaml.dump(value, Dumper=Reference, default_flow_style=False, sort_keys=False, allow_unicode=True)
    assert dump(value, sort_keys=False) == expected


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\ufeff", "\x85", "\x1b"])
def test_signs_that_editors_take_for_line_ends_are_escaped(sign):
    text = dump({"a": f"x{sign}y"}, sort_keys=False)
    assert sign not in text
    assert parse(text, "t") == {"a": f"x{sign}y"}


def test_long_lists_wrap_like_existing_files():
    names = ("z", *(f"very_long_output_name_{i:02}" for i in range(6)))
    text = dump_contract(Contract(nodes={}, pipeline=Wiring(outputs={"b": names})))
    assert (
        """
    b: [z, very_long_output_name_00, very_long_output_name_01, very_long_output_name_02,
      very_long_output_name_03, very_long_output_name_04, very_long_output_name_05]
"""
        in text
    )


def test_a_list_used_twice_is_written_twice():
    shared = ["a", "b"]
    ports = tuple(Port(name=n, dtype="int8", shape=(2,), element_names=[shared], extra={"l": shared}) for n in "xy")
    text = dump_contract(Contract(nodes={"n": Node(inputs=ports, outputs=())}, pipeline=Wiring()))
    assert "&" not in text and "*" not in text


def replaced(old: str, new: str, name: str = "chain") -> str:
    text = TEXTS[name] + SYSTEM
    assert old in text
    return text.replace(old, new)


ACCEPTED = {
    "1.0": replaced("'1.3'", "'1.0'"),
    "1.1 without the newer keys": replaced("      warp_segments: 0\n", "").replace("  warp version: null\n", ""),
    "1.9 with unknown keys": replaced("'1.3'", "'1.9'")
    .replace("pipeline:\n", "pipeline:\n  axes: [1]\n")
    .replace("      warp_segments: 0\n", "      warp_segments: 0\n      streams: {a: 1}\n"),
    "version as a number": replaced("'1.3'", "1.1"),
    "no type": replaced("      type: tensor\n", ""),
    "keys in another order": "\n".join(reversed((TEXTS["chain"] + SYSTEM).strip().split("\n\n"))),
    "older feedback key": replaced("feedback_flow", "feedback_connections", "feedback"),
    "both feedback keys": replaced(
        "  feedback_flow:\n    f/mo: [p/mem, f/prev]\n",
        "  feedback_flow: &f\n    f/mo: [p/mem, f/prev]\n  feedback_connections: *f\n",
        "feedback",
    ),
    "aliases": replaced("shape: [4]", "shape: &s [4]").replace("      shape: &s [4]", "      shape: &s [4]", 1),
    "unknown section": TEXTS["chain"] + SYSTEM + "notes: {by: me}\n",
    "windows line ends": (TEXTS["chain"] + SYSTEM).replace("\n", "\r\n"),
    "byte order mark": "\ufeff" + TEXTS["chain"] + SYSTEM,
}


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
def test_accepted_variants_mean_the_same(name, suffix, tmp_path):
    path = tmp_path / f"g{suffix}"
    path.write_bytes(ACCEPTED[name].encode())
    contract = load_contract(path)
    assert load_contract(str(path)) == contract
    plain = TEXTS["feedback" if "feedback" in name else "chain"] + SYSTEM
    expected = contract_of(parse(plain, "t"), "t", plain)
    assert contract.pipeline == expected.pipeline
    assert {n: (v.inputs, v.outputs) for n, v in contract.nodes.items()} == {
        n: (v.inputs, v.outputs) for n, v in expected.nodes.items()
    }


REFUSED = {
    "other major": (replaced("'1.3'", "'2.0'"), "2.0 is not supported"),
    "no models": (replaced("models:", "model:"), "'models' is missing"),
    "no system": (TEXTS["chain"], "'system information' is missing"),
    "no parameters": (replaced("    parameters:", "    params:"), "models.pre: 'parameters' is missing"),
    "no sha key": (replaced("sha256sum", "sha"), "'sha256sum' is missing"),
    "sha null": (replaced(SHA, "null"), "models.pre.parameters.sha256sum"),
    "sha short": (replaced(SHA, SHA[:-1]), "64 hexadecimal"),
    "backend a number": (replaced("backend: jit", "backend: 3"), "models.pre.parameters.backend"),
    "shape of text": (replaced("shape: [4]", "shape: [4, a]"), "models.pre.inputs[0].shape[1]"),
    "shape negative": (replaced("shape: [4]", "shape: [-4]"), "models.pre.inputs[0].shape"),
    "shape huge": (replaced("shape: [4]", "shape: [9999999, 9999999]"), "possible shape"),
    "shape of booleans": (replaced("shape: [4]", "shape: [true]"), "inputs[0].shape[0]"),
    "shape a float": (replaced("shape: [4]", "shape: [4.0]"), "inputs[0].shape[0]"),
    "shape missing": (replaced("      shape: [4]\n", ""), "shape"),
    "dtype unknown": (replaced("dtype: float32", "dtype: float31"), "unknown dtype 'float31'"),
    "type": (replaced("type: tensor", "type: list"), "'tensor'"),
    "name number": (replaced("name: a\n", "name: 1\n"), "models.pre.inputs[0].name"),
    "name with slash": (replaced("name: a\n", "name: a/b\n"), "not a usable name"),
    "port twice": (replaced("name: a\n", "name: b\n"), "'b' is listed twice"),
    "inputs a mapping": (replaced("    inputs:\n    - name: a", "    inputs:\n      q: 1\n    x:\n    - name: a"), "list"),
    "flow from nowhere": (replaced("pre/f: [", "pre/q: ["), "no output is called 'pre/q'"),
    "flow to nowhere": (replaced("[pol/feat]", "[pol/q]"), "no input is called 'pol/q'"),
    "fed twice": (replaced("[pol/feat]", "[pol/feat, pol/feat]"), "fed twice"),
    "fed from outside too": (replaced("    pre: [a, b]", "    pre: [a, b]\n    pol: [feat]"), "fed twice"),
    "unfed": (replaced("    pre: [a, b]", "    pre: [a]"), "nothing feeds the input 'pre/b'"),
    "lost output": (replaced("    pol: [act]", "    pol: []"), "'pol/act' goes nowhere"),
    "unknown graph output": (replaced("    pol: [act]", "    pol: [act, q]"), "no output is called 'pol/q'"),
    "edge of other shape": (
        replaced(
            "- name: feat\n      dtype: float32\n      shape: [4]", "- name: feat\n      dtype: float32\n      shape: [5]"
        ),
        "takes float32 [5]",
    ),
    "two feedback keys that differ": (
        replaced("  feedback_flow:", "  feedback_connections: {}\n  feedback_flow:", "feedback"),
        "something else",
    ),
    "configs a list": (replaced("pipeline:\n", "pipeline:\n  configs: [1]\n"), "pipeline.configs"),
    "flow target not a list": (replaced("[pol/feat]", "pol/feat"), "pipeline.data_flow"),
    "initial values a number": (replaced("pipeline:\n", "pipeline:\n  initial_values: 3\n"), "pipeline.initial_values"),
    "empty": ("", "expected a mapping"),
    "a list": ("- 1\n", "expected a mapping"),
    "a key of another type": (TEXTS["chain"] + SYSTEM + "1: 2\n", "text key"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_place(name, tmp_path):
    text, message = REFUSED[name]
    path = tmp_path / "g.yaml"
    path.write_text(text)
    with pytest.raises(BundleError) as caught:
        load_contract(path)
    assert message in str(caught.value) and "g.yaml" in str(caught.value)


def test_a_description_without_a_version_is_read_as_the_oldest(tmp_path):
    path = tmp_path / "g.yaml"
    path.write_text(replaced("'1.3'", "'1.0'"))
    oldest = load_contract(path)
    path.write_text(replaced("  leapp config version: '1.3'\n", ""))
    with pytest.warns(UserWarning, match=r"g\.yaml: 'leapp config version' is missing .* version 1\.0"):
        found = load_contract(path)
    assert (found.nodes, found.pipeline) == (oldest.nodes, oldest.pipeline)


def test_the_line_is_named(tmp_path):
    text = replaced("shape: [2]", "shape: [two]")
    path = tmp_path / "g.yaml"
    path.write_text(text)
    line = text.split("\n").index("      shape: [two]") + 1
    with pytest.raises(BundleError, match=f"line {line}: models.pol.outputs"):
        load_contract(path)


def test_wrong_paths(tmp_path):
    with pytest.raises(BundleFileError):
        load_contract(tmp_path / "g.yaml")
    with pytest.raises(FileNotFoundError):
        load_contract(str(tmp_path / "g.yaml"))
    with pytest.raises(BundleFileError, match="no_such_bundle does not exist"):
        open_bundle(tmp_path / "no_such_bundle")
    (tmp_path / "g.json").write_text("{}")
    with pytest.raises(ValueError, match=r"\.yaml"):
        load_contract(tmp_path / "g.json")


def test_schema_names_every_key_and_accepts_what_is_written():
    described = schema()
    assert set(described["properties"]) == {"models", "pipeline", "system information", "integrity"}
    fields = {field.name for field in msgspec.structs.fields(Port)} - {"extra"}
    assert set(described["$defs"]["Port"]["properties"]) == fields
    assert described["$defs"]["Port"]["required"] == ["name", "dtype", "shape"]
    assert msgspec.json.decode(msgspec.json.encode(described)) == described
