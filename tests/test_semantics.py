"""What a port means: construction, checks and the entry that reaches the YAML."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml

from leapp.bundle.contract_yaml import dump_contract
from leapp.errors import AnnotationError, AnnotationTypeError
from leapp.graph.contract import Contract, Node, Wiring
from leapp.graph.ports import port
from leapp.semantics import (
    GraphConfigs,
    InputKindEnum,
    OutputKindEnum,
    TemporalAxis,
    TensorDescription,
    TensorSemantics,
)


def test_fields_read_back():
    ref = torch.ones(1, 3)
    semantics = TensorSemantics("jp", ref, InputKindEnum.JOINT_POSITION, ["a", "b", "c"], {"isaaclab_connection": "s"})
    assert semantics.name == "jp"
    assert semantics.ref is ref
    assert semantics.kind is InputKindEnum.JOINT_POSITION
    assert semantics.element_names == [["a", "b", "c"]]
    assert semantics.extra == {"isaaclab_connection": "s"}
    assert semantics.temporal_period_ms is None


def test_description_is_the_yaml_entry():
    ref = np.zeros((4, 3), np.float16)
    semantics = TensorSemantics(
        "act", ref, OutputKindEnum.JOINT_TORQUES, [TemporalAxis(100), ("hip", "knee", "ankle")], {"mine": 1}
    )
    entry = TensorDescription("act", ref, semantics=semantics).dict()
    assert list(entry) == ["name", "dtype", "shape", "type", "kind", "element_names", "temporal_period_ms", "mine"]
    assert entry["dtype"] == "float16" and entry["shape"] == [4, 3]
    assert entry["kind"] == "target/joint/torques" and type(entry["kind"]) is str
    assert entry["element_names"] == ["__temporal_axis__", ["hip", "knee", "ankle"]]
    assert entry["temporal_period_ms"] == 100
    assert TensorDescription("x", torch.zeros(2, dtype=torch.bfloat16)).dict()["dtype"] == "bfloat16"


FITS = [
    ((1, 3), ["a", "b", "c"], [["a", "b", "c"]]),
    ((1, 3), [None, ["a", "b", "c"]], [None, ["a", "b", "c"]]),
    ((1,), "z", [["z"]]),
    ((), "z", [["z"]]),
    ((4, 3), [TemporalAxis(20), ["a", "b", "c"]], ["__temporal_axis__", ["a", "b", "c"]]),
    ((2, 5, 3), [["l", "r"], None, ["x", "y", "z"]], [["l", "r"], None, ["x", "y", "z"]]),
    ((1, 2, 3), [["l", "r"], ["x", "y", "z"]], [["l", "r"], ["x", "y", "z"]]),
    ((3, 1), ["a", "b", "c"], [["a", "b", "c"]]),
    ((12, 4), [["j"] * 12], [["j"] * 12]),
    ((2, 3), [[], ["a", "b", "c"]], [[], ["a", "b", "c"]]),
    ((2,), ("a", "b"), [["a", "b"]]),
    ((2,), (("a", "b"),), [["a", "b"]]),
    ((2,), np.array(["a", "b"]), [["a", "b"]]),
    ((2, 2), [], [[]]),
]


@pytest.mark.parametrize(("shape", "names", "expected"), FITS)
def test_element_names_that_fit(shape, names, expected):
    semantics = TensorSemantics("p", torch.zeros(shape), element_names=names)
    assert semantics.element_names == expected
    assert all(entry is None or type(entry) in (str, list) for entry in semantics.element_names)


MISFITS = [
    ((1, 3), ["a", "b"], "axis 1", "expected 3"),
    ((2, 3), [["a", "b", "c"], ["a", "b", "c"]], "axis 0", "expected 2"),
    ((3,), [None, ["a", "b", "c"]], "2 axes", "has 1"),
    ((4, 3), [TemporalAxis(10), ["a", "b"]], "axis 1", "expected 3"),
    ((), ["a", "b"], "2 names", "expected 1"),
]


@pytest.mark.parametrize(("shape", "names", "first", "second"), MISFITS)
def test_element_names_that_do_not_fit_are_refused(shape, names, first, second):
    with pytest.raises(AnnotationError, match="'p'") as caught:
        TensorSemantics("p", torch.zeros(shape), element_names=names)
    assert first in str(caught.value) and second in str(caught.value)


REFUSED = [
    (lambda: TensorSemantics("p", [1, 2]), TypeError, "ref"),
    (lambda: TensorSemantics(), TypeError, "ref"),
    (lambda: TensorSemantics(3, torch.ones(2)), TypeError, "name"),
    (lambda: TensorSemantics("p", torch.ones(2), kind=3), TypeError, "kind"),
    (lambda: TensorSemantics("p", torch.ones(2), element_names=[1, 2]), TypeError, "strings"),
    (lambda: TensorSemantics("p", torch.ones(2), element_names=5), TypeError, "element_names"),
    (lambda: TensorSemantics("p", torch.ones(1, 1), element_names=["a", ["b"]]), ValueError, "mixes"),
    (lambda: TensorSemantics("p", torch.ones(1, 1), element_names=[TemporalAxis(1)] * 2), ValueError, "more than one"),
    (lambda: TensorSemantics("p", torch.ones(1), element_names=[[TemporalAxis(1)]]), ValueError, "whole axis"),
    (lambda: TensorSemantics("p", torch.ones(1), element_names="__temporal_axis__"), ValueError, "TemporalAxis"),
    (lambda: TensorSemantics("p", torch.ones(1), element_names=[["__temporal_axis__"]]), ValueError, "TemporalAxis"),
    (lambda: TensorSemantics("p", torch.ones(2), extra={"shape": [9]}), ValueError, "'shape'"),
    (lambda: TensorSemantics("p", torch.ones(2), extra={"name": "q"}), ValueError, "'name'"),
    (lambda: TensorSemantics("p", torch.ones(2), units="m", extra={"units": "m"}), ValueError, "'units'"),
    (lambda: TensorSemantics("p", torch.ones(2), extra=[1]), TypeError, "extra"),
    (lambda: TensorSemantics("p", torch.ones(2), extra={1: 2}), TypeError, "keys"),
    (lambda: TensorSemantics("p", torch.ones(2), extra={"f": print}), TypeError, "YAML"),
    (lambda: TensorSemantics("p", torch.ones(2), extra={"f": {"g": b"x"}}), TypeError, "bytes"),
    (lambda: TensorSemantics("p", torch.ones(2), extra={"f": "\ud800"}), ValueError, "Unicode"),
    (lambda: TensorSemantics("p", torch.ones(2), limits=[1, 2, 3]), ValueError, "limits"),
    (lambda: TemporalAxis(0), ValueError, "positive"),
    (lambda: TemporalAxis("a"), TypeError, "number"),
    (lambda: GraphConfigs(0), ValueError, "positive"),
    (lambda: GraphConfigs(float("nan")), ValueError, "positive"),
    (lambda: GraphConfigs("50"), TypeError, "frequency"),
    (lambda: GraphConfigs(frequency_hz=50), TypeError, "frequency_hz"),
    (lambda: GraphConfigs(50, {"frequency": 1}), ValueError, "overwrite"),
    (lambda: GraphConfigs(50, {1: "one"}), TypeError, "keys of .extra. must be strings"),
]


@pytest.mark.parametrize(("make", "kind", "word"), REFUSED)
def test_refused(make, kind, word):
    with pytest.raises(kind, match=word):
        make()


def test_errors_are_ours():
    with pytest.raises(AnnotationTypeError):
        TensorSemantics("p", torch.ones(2), kind=3)
    with pytest.raises(AnnotationError):
        TemporalAxis(-1)


def test_meaning_beyond_names_reaches_the_yaml_as_plain_data():
    semantics = TensorSemantics(
        "q",
        torch.zeros(1, 2),
        "state/joint/position",
        ["a", "b"],
        {"gain": np.float32(0.5), "table": (1, (2, np.int64(3))), "arr": np.arange(2), "t": torch.tensor([1.5])},
        units="rad",
        limits=([-1, -2], np.array([1.0, 2.0])),
        scale=np.float64(0.25),
        frame="base",
    )
    node = Node(inputs=(port("q", "float32", (1, 2), semantics),), outputs=())
    text = dump_contract(Contract(nodes={"n": node}, pipeline=Wiring(inputs={"n": ("q",)})))
    assert yaml.safe_load(text)["models"]["n"]["inputs"][0] == {
        "name": "q",
        "dtype": "float32",
        "shape": [1, 2],
        "type": "tensor",
        "kind": "state/joint/position",
        "element_names": [["a", "b"]],
        "units": "rad",
        "limits": [[-1, -2], [1.0, 2.0]],
        "scale": 0.25,
        "frame": "base",
        "gain": 0.5,
        "table": [1, [2, 3]],
        "arr": [0, 1],
        "t": [1.5],
    }


def test_extra_keeps_its_own_units():
    semantics = TensorSemantics("q", torch.zeros(2), extra={"units": "deg", "scale": 3})
    assert semantics.to_dict() == {"units": "deg", "scale": 3}


def test_update_sets_fields_and_extra():
    semantics = TensorSemantics("q", torch.zeros(2, 3), element_names=[TemporalAxis(10), None])
    semantics.update({"kind": "k", "foo": (1, 2)})
    assert semantics.to_dict()["foo"] == [1, 2] and semantics.kind == "k"
    assert semantics.temporal_period_ms == 10
    with pytest.raises(AnnotationError):
        semantics.update({"element_names": ["a"]})


def test_port_checks_the_shape_it_is_given():
    semantics = TensorSemantics("q", torch.zeros(2), element_names=["a", "b"])
    with pytest.raises(AnnotationError, match="renamed"):
        port("renamed", "float32", (3,), semantics)


def test_graph_configs():
    assert GraphConfigs(50, {"runtime": "isaac"}).to_dict() == {"frequency": 50, "runtime": "isaac"}
    assert GraphConfigs().to_dict() == {}
    assert type(GraphConfigs(np.float32(50.0)).to_dict()["frequency"]) is float


def test_enum_values():
    assert len(InputKindEnum) == 20 and len(OutputKindEnum) == 11
    assert InputKindEnum.BODY_VEL.value == "state/body/velocity"
    assert OutputKindEnum.BODY_ORIENTATION.value == "target/body/orientation"


def test_import_needs_no_tensor_library():
    code = "import sys, leapp.semantics, leapp.bundle; print({'torch','numpy','onnx','onnxruntime'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
