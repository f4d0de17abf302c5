"""The page as text: complete, offline, safe against whatever names say."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from leapp.bundle import RawTensor, Sample
from leapp.errors import BundleError
from leapp.graph.contract import Contract
from leapp.view import draw, page, write_page
from leapp.view.exported import exported_details
from leapp.view.page import _DARK

from .cases import CASES, FACTS, contract, node, port


class Outline(HTMLParser):
    """The elements of a page and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] == "script":
            self.scripts[-1] += data

    @property
    def data(self) -> dict:
        return json.loads(self.scripts[0])


@pytest.mark.parametrize("name", CASES)
def test_every_page_is_offline_and_has_exactly_its_own_scripts(name: str) -> None:
    outline = Outline(page(CASES[name](), name))
    assert [e[1].get("type") for e in outline.elements if e[0] == "script"] == ["application/json", None]
    assert not [e for e in outline.elements if e[0] in ("link", "img", "iframe", "object", "embed", "image", "use")]
    for tag, attributes in outline.elements:
        assert not {"src", "href", "xlink:href"} & attributes.keys(), tag
        assert not [a for a in attributes if a.startswith("on")], tag
    policy = next(a["content"] for t, a in outline.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in str(policy)


@pytest.mark.parametrize("name", CASES)
def test_every_colour_of_the_picture_has_a_dark_one(name: str) -> None:
    svg = draw(CASES[name](), name, **FACTS.get(name, {})).svg()
    assert set(re.findall(r'(?:fill|stroke)="(#\w+)"', svg)) <= _DARK.keys()


def test_names_cannot_leave_the_data() -> None:
    name = "</script><script>alert(1)</script><!--"
    made = contract({name: node([port("<script>", kind=name, extra={"units": name, name: name})], [port("y")])})
    details = {"nodes": {name: {"ops": [{"op": name, "file": name, "line": 1, "text": name}]}}}
    outline = Outline(page(made, name, details=details))
    assert len(outline.scripts) == 2
    (found,) = outline.data["nodes"]
    assert found["name"] == found["inputs"][0]["units"] == found["ops"][0]["text"] == name


def test_small_graphs_give_small_pages(tmp_path: Path) -> None:
    path = write_page(CASES["quadruped"](), "quadruped", tmp_path)
    assert path == tmp_path / "quadruped.html"
    assert path.stat().st_size < 100_000


def test_the_same_contract_gives_the_same_page() -> None:
    assert page(CASES["mesh_12"](), "m") == page(CASES["mesh_12"](), "m")


def test_a_name_that_is_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="path separators"):
        write_page(CASES["one"](), "../evil", tmp_path)


def sampled(values: list[np.ndarray], dtype: str = "float32") -> dict:
    """The sparkline of an input that had these values."""
    made: Contract = contract({"n": node([port("x", values[0].shape, dtype)], [port("y", (1,))])})
    samples = [Sample({"x": RawTensor.of(v)}, {"y": RawTensor.of(np.zeros(1, np.float32))}) for v in values]
    return Outline(page(made, "g", samples={"n": samples})).data["nodes"][0]["inputs"][0].get("spark")


def test_samples_become_lines_over_the_passes() -> None:
    values = [np.array([i, -2.5 * i], np.float32) for i in range(5)]
    assert sampled(values) == {
        "passes": 5, "size": 2, "low": -10.0, "high": 4.0, "picked": [0, 1],
        "lines": [[0, 1, 2, 3, 4], [0, -2.5, -5, -7.5, -10]],
    }  # fmt: skip


def test_of_many_elements_those_that_vary_are_drawn() -> None:
    values = [np.zeros(300, np.float32) for _ in range(4)]
    for i, value in enumerate(values):
        value[[7, 200]] = i, -i
    spark = sampled(values)
    assert {7, 200} <= set(spark["picked"])
    assert spark["lines"][spark["picked"].index(200)] == [0, -1, -2, -3]


def test_one_sample_becomes_bars() -> None:
    assert sampled([np.array([3, 1, 2], np.float32)])["bars"] == [3, 1, 2]


def test_odd_samples_are_shown_as_far_as_they_can_be() -> None:
    spark = sampled([np.array([np.nan, 1], np.float32), np.array([np.inf, 2], np.float32)])
    assert spark["lines"] == [[None, None], [1, 2]]
    assert (spark["low"], spark["high"]) == (1, 2)
    assert sampled([np.zeros((0, 3), np.float32)]) is None
    assert sampled([np.zeros(2, np.complex64)], "complex64") is None
    assert sampled([np.array([True, False])] * 2, "bool")["lines"] == [[1, 1], [0, 0]]


def test_long_recordings_are_thinned_out() -> None:
    spark = sampled([np.full(100, i, np.float32) for i in range(1000)])
    assert spark["passes"] == 1000
    assert len(spark["lines"]) <= 6
    assert len(spark["lines"][0]) <= 32


DETAILS = {
    "static_outputs": ["actuation/kp"],
    "glue": [{"node": "actor", "source": "observation/obs", "ops": ["mul at a.py:5"], "file": "a.py", "line": 6}],
    "validation": {"actor/action": {"largest": 3e-6, "mean": 1e-7, "count": 48, "exact": 20, "unlike": 0, "bins": {"-7": 28}}},
    "nodes": {
        "actor": {
            "parameters": 12,
            "passed": True,
            "op_count": 1,
            "ops": [{"op": "torch.tanh", "file": "a.py", "line": 4, "text": "torch.tanh(x)"}],
            "constants": [{"name": "w", "shape": [3], "dtype": "float32", "bytes": 12, "file": "a.py", "line": 4}],
            "escapes": [{"kind": "float()", "file": "a.py", "line": 3, "text": "float(x)", "value": "0.5", "varies": False}],
            "weights": {
                "total": 1,
                "list": [{"name": "w", "shape": [3], "dtype": "float32", "low": 0.5, "high": 2.0, "mean": 1.0}],
            },
        }
    },
}


def test_what_an_export_told_is_read_back_from_its_page(tmp_path: Path) -> None:
    made = CASES["quadruped"]()
    path = write_page(made, "g", tmp_path, details=DETAILS)
    found = exported_details(path, made)
    assert found["nodes"]["actor"] == DETAILS["nodes"]["actor"]
    assert all(found[name] == DETAILS[name] for name in ("static_outputs", "glue", "validation"))
    assert Outline(page(made, "g", details=found)).data == Outline(path.read_text(encoding="utf-8")).data


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"parameters":12', '"parameters":"many"'),
        ('"line":4', '"line":{"x":1}'),
        ('"bins":{"-7":28}', '"bins":[1]'),
        ('"name":"actor"', '"name":"other"'),
        ('id="data">', 'id="data"><script>alert(1)</script>'),
        ('"ops":[{', '"ops":[3,{'),
        ('{"name"', '{"name'),
    ],
)
def test_a_page_in_another_form_tells_nothing(old: str, new: str, tmp_path: Path) -> None:
    made = CASES["quadruped"]()
    path = write_page(made, "g", tmp_path, details=DETAILS)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    assert exported_details(path, made) == exported_details(tmp_path / "none.html", made) == {}
