"""The picture: nothing overlaps, nothing is hidden or cut, and both files say everything the contract says."""

from __future__ import annotations

import io
import itertools
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image

from leapp.errors import BundleError
from leapp.graph.contract import Contract, Wiring
from leapp.view import Picture, draw, png, text, write_views
from leapp.view.node_box import STYLES, Box, Label, Route
from leapp.view.png import png_scale

from .cases import CASES, FACTS, HOSTILE, chain, contract, mesh, node, port, quadruped, states

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def pictures() -> dict[str, Picture]:
    return {name: draw(make(), name, **FACTS.get(name, {})) for name, make in CASES.items()}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, pictures: dict[str, Picture]) -> tuple[str, Contract, Picture]:
    return request.param, CASES[request.param](), pictures[request.param]


def overlap(a: Box, b: Box, slack: float = 0.5) -> bool:
    return a.x < b.right - slack and b.x < a.right - slack and a.y < b.bottom - slack and b.y < a.bottom - slack


def inside(a: Box, b: Box) -> bool:
    return a.x >= b.x - 0.01 and a.y >= b.y - 0.01 and a.right <= b.right + 0.01 and a.bottom <= b.bottom + 0.01


def crosses(route: Route, box: Box) -> bool:
    """Whether any segment of the line meets the inside of the box (clipping by Liang and Barsky)."""
    for (x0, y0), (x1, y1) in itertools.pairwise(route.points):
        if max(x0, x1) < box.x or min(x0, x1) > box.right or max(y0, y1) < box.y or min(y0, y1) > box.bottom:
            continue
        low, high = 0.0, 1.0
        for delta, room_low, room_high in (
            (x1 - x0, box.x + 0.5 - x0, box.right - 0.5 - x0),
            (y1 - y0, box.y + 0.5 - y0, box.bottom - 0.5 - y0),
        ):
            if abs(delta) < 1e-9:
                if room_low >= 0 or room_high <= 0:
                    low, high = 1.0, 0.0
                continue
            ends = sorted((room_low / delta, room_high / delta))
            low, high = max(low, ends[0]), min(high, ends[1])
        if low < high:
            return True
    return False


def test_no_node_overlaps_another_with_its_tags_and_loops(case):
    layout = case[2].layout
    for a, b in itertools.combinations(layout.nodes, 2):
        assert not overlap(a.outer, b.outer), (a.facts.name, b.facts.name)


def test_everything_lies_on_the_sheet_and_inside_its_node(case):
    layout = case[2].layout
    sheet = Box(0, 0, layout.width, layout.height)
    for n in layout.nodes:
        assert inside(n.outer, sheet)
        assert inside(n.box, n.outer)
        for label in n.labels:
            assert inside(label.box, n.header), label
        for p in n.ports:
            for label in p.labels:
                assert inside(label.box, n.box), label
            assert p.tag is None or inside(p.tag, n.outer)
    for route in layout.routes:
        assert all(0 <= x <= layout.width and 0 <= y <= layout.height for x, y in route.points)
    for label in (*layout.title, *(entry.label for entry in layout.legend)):
        assert inside(label.box, sheet), label


def test_no_text_runs_into_other_text(case):
    layout = case[2].layout
    for n in layout.nodes:
        labels = [label for p in n.ports for label in p.labels] + list(n.labels)
        for a, b in itertools.combinations(labels, 2):
            assert not overlap(a.box, b.box, slack=1.5), (a, b)
    outside = [*layout.title, *(entry.label for entry in layout.legend)]
    for a, b in itertools.combinations(outside, 2):
        assert not overlap(a.box, b.box, slack=1.5), (a, b)


def test_no_wire_crosses_a_box_or_hides_behind_a_tag(case):
    layout = case[2].layout
    for route in layout.routes:
        for n in layout.nodes:
            assert not crosses(route, n.box), (route.source, route.target, n.facts.name)
            for p in n.ports:
                assert p.tag is None or not crosses(route, p.tag), (route.source, route.target, p.facts.spot)


def test_wires_of_different_outputs_never_share_a_line(case):
    """Two wires on one line could not be told apart."""
    layout = case[2].layout
    straight: list[tuple[int, float, float, float, Route]] = []
    for route in layout.routes:
        for (x0, y0), (x1, y1) in itertools.pairwise(route.points):
            if abs(y0 - y1) < 0.01 and abs(x0 - x1) > 4:
                straight.append((0, y0, min(x0, x1), max(x0, x1), route))
            elif abs(x0 - x1) < 0.01 and abs(y0 - y1) > 4:
                straight.append((1, x0, min(y0, y1), max(y0, y1), route))
    straight.sort(key=lambda s: s[:3])
    for a, b in itertools.combinations(straight, 2) if len(straight) < 800 else itertools.pairwise(straight):
        if a[0] == b[0] and abs(a[1] - b[1]) < 1.5 and min(a[3], b[3]) - max(a[2], b[2]) > 2:
            assert a[4].source == b[4].source or a[4].target == b[4].target, (a, b)


def test_every_wire_joins_the_ports_it_should(case):
    _, made, picture = case
    anchors = {p.facts.spot: p.anchor for n in picture.layout.nodes for p in n.ports}
    drawn = set()
    for route in picture.layout.routes:
        assert route.points[0] == pytest.approx(anchors[route.source])
        assert route.points[-1] == pytest.approx(anchors[route.target])
        flow = "data" if route.kind == "data" else "feedback"
        drawn.add((flow, "/".join(route.source[::2]), "/".join(route.target[::2])))
    wanted = {
        (flow, source, target)
        for flow, wires in (("data", made.pipeline.data_flow), ("feedback", made.pipeline.feedback_flow))
        for source, targets in wires.items()
        for target in targets
    }
    assert drawn == wanted


RULES = (
    test_no_node_overlaps_another_with_its_tags_and_loops,
    test_no_wire_crosses_a_box_or_hides_behind_a_tag,
    test_wires_of_different_outputs_never_share_a_line,
    test_every_wire_joins_the_ports_it_should,
)


def test_every_port_is_drawn_with_its_whole_name(case):
    _, made, picture = case
    for n in picture.layout.nodes:
        wanted = made.nodes[n.facts.name]
        assert [p.facts.name for p in n.ports] == [p.name for p in (*wanted.inputs, *wanted.outputs)]
        for p in n.ports:
            lines = [label.text for label in p.labels if label.style == "port"]
            assert "".join(lines) == text.visible(p.facts.name)
        assert "".join(label.text for label in n.labels if label.style == "node") == text.visible(n.facts.name)


def test_graph_inputs_and_outputs_carry_tags(case):
    _, made, picture = case
    tags = {p.facts.spot: p.facts.tag for n in picture.layout.nodes for p in n.ports if p.tag}
    inputs = {(n, "in", p) for n, ports in made.pipeline.inputs.items() for p in ports}
    outputs = {(n, "out", p) for n, ports in made.pipeline.outputs.items() for p in ports}
    assert {spot for spot, tag in tags.items() if tag == "input"} == inputs
    assert {spot for spot, tag in tags.items() if tag in ("output", "static output")} == outputs


def test_edges_run_from_left_to_right_and_feedback_below(pictures):
    """On a sheet of one band an edge never turns back, and feedback runs under every box it passes."""
    for name in ("quadruped", "mesh_12", "far_feedback"):
        (layout,) = draw(CASES[name](), name, aspects=(8.0,)).layouts
        assert {"data", "feedback"} <= {route.kind for route in layout.routes}
        for route in layout.routes:
            xs = [x for x, _ in route.points]
            if route.kind == "data":
                assert xs == sorted(xs), (name, route.source)
            elif route.kind == "feedback":
                lowest = max(y for _, y in route.points)
                low, high = min(xs), max(xs)
                passed = [n.box.bottom for n in layout.nodes if n.box.right > low and n.box.x < high]
                assert lowest > max(passed)


def test_a_chain_is_drawn_straight():
    (layout,) = draw(chain(5), "chain", aspects=(8.0,)).layouts
    assert len(layout.routes) == 4
    for route in layout.routes:
        assert len({round(y, 3) for _, y in route.points}) == 1


def test_a_picture_keeps_a_readable_shape(pictures):
    for name in ("chain_60", "mesh_60", "mesh_60_dense", "fan_58", "lonely_60"):
        layout = pictures[name].layout
        assert 0.4 < layout.width / layout.height < 3.2, (name, layout.width, layout.height)
        assert layout.width < 7000, name


@pytest.mark.parametrize("name", ["chain_12", "chain_60", "mesh_12", "mesh_60", "fan_58", "lonely_60", "disconnected"])
def test_a_layout_fills_the_window_it_is_made_for(name):
    """Of the layouts for several windows, the one made for a window shows everything about as large as any."""
    aspects = (0.55, 1.0, 1.6, 2.5)
    layouts = draw(CASES[name](), name, aspects=aspects).layouts
    for aspect, own in zip(aspects, layouts, strict=True):
        scales = [min(aspect / layout.width, 1 / layout.height) for layout in layouts]
        assert min(aspect / own.width, 1 / own.height) > 0.75 * max(scales), (name, aspect)


def test_every_layout_keeps_the_rules():
    for name in ("mesh_12", "far_feedback", "mesh_60", "quadruped"):
        made = CASES[name]()
        picture = draw(made, name, aspects=(0.4, 1.0, 3.0))
        for layout in picture.layouts:
            one = Picture(name, picture.subject, (layout,), ())
            for check in RULES:
                check((name, made, one))


def test_edges_that_cross_have_different_colours(pictures):
    """Between two layers, wires of different outputs that cross can be told apart by colour."""
    picture = pictures["mesh_12"]
    colour = {g.key: g.marks[0].colour for g in picture.groups if g.role == "data"}
    assert len(set(colour.values())) > 1
    crossings = 0
    direct = [
        r for r in picture.layout.routes if r.kind == "data" and all(b[-2] >= a[-2] for a, b in itertools.pairwise(r.path))
    ]
    for a, b in itertools.combinations(direct, 2):
        names = [f"{r.source[0]}/{r.source[2]} → {r.target[0]}/{r.target[2]}" for r in (a, b)]
        for (p, q), (r, s) in itertools.product(itertools.pairwise(a.path), itertools.pairwise(b.path)):
            same_gap = len(q) == len(s) == 6 and p[-2] == r[-2] and q[-2] == s[-2]
            if a.source != b.source and same_gap and (p[-1] - r[-1]) * (q[-1] - s[-1]) < 0:
                crossings += 1
                assert colour[names[0]] != colour[names[1]], names
    assert crossings


def test_an_output_may_be_both_consumed_and_a_graph_output(pictures):
    layout = pictures["quadruped"].layout
    action = next(p for n in layout.nodes for p in n.ports if p.facts.spot == ("actor", "out", "action"))
    assert action.tag is not None
    assert action.facts.tag == "output"
    assert {r.kind for r in layout.routes if r.source == action.facts.spot} == {"data", "feedback"}
    assert action.anchor[0] == pytest.approx(action.tag.right)


def test_title_and_legend_tell_what_is_there(pictures):
    layout = pictures["quadruped"].layout
    said = " ".join(label.text for label in layout.title)
    for part in ("quadruped", "3 nodes", "2 edges", "1 feedback", "1 state", "1,284,132 parameters", "50 Hz"):
        assert part in said
    signs = {entry.sign for entry in layout.legend}
    assert signs == {"input", "output", "static output", "data", "feedback", "state"}
    assert {entry.sign for entry in pictures["loose"].layout.legend} == {"input", "output", "loose"}
    assert "no model" in {entry.sign for entry in pictures["without_model"].layout.legend}


def test_a_partly_known_parameter_count_is_not_passed_off_as_the_total():
    title = draw(chain(3), "g", parameter_counts={"stage_0": 10, "stage_2": 5}).layout.title
    assert "15 parameters in 2 of 3 nodes" in " ".join(label.text for label in title)


def test_ports_say_shape_dtype_kind_units_and_element_names(pictures):
    ports = {p.facts.spot: [label.text for label in p.labels] for n in pictures["quadruped"].layout.nodes for p in n.ports}
    assert ports["observation", "in", "joint_pos"] == [
        "joint_pos",
        "[1, 12] float32 · 12 names",
        "state/joint/position in rad",
    ]
    assert ports["actuation", "out", "targets"][1] == "[4, 12] float32 · 12 names · 20 ms apart"


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_all_text_is_readable_against_what_it_stands_on(pictures):
    """WCAG AA asks for a contrast of 4.5; judged in the rendered pixels."""
    picture = pictures["quadruped"]
    image = Image.open(io.BytesIO(picture.png())).convert("RGB")
    scale = png_scale(picture.layout.width, picture.layout.height)
    for group in picture.groups:
        for mark in group.marks:
            if not isinstance(mark, Label):
                continue
            x, y = (mark.x - 1.5) * scale, (mark.baseline - 4) * scale
            colour = STYLES[mark.style][2]
            behind = "#{:02x}{:02x}{:02x}".format(*image.getpixel((round(x), round(y))))
            light, dark = sorted((luminance(behind), luminance(colour)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (mark.text, behind, colour)


def test_png_has_the_size_of_the_layout_and_shows_every_tag(case):
    _, _, picture = case
    image = Image.open(io.BytesIO(picture.png()))
    image.load()
    layout = picture.layout
    scale = png_scale(layout.width, layout.height)
    assert image.format == "PNG"
    assert image.size == pytest.approx((layout.width * scale, layout.height * scale), abs=1)
    pixels = image.convert("RGB")
    colours = {"input": (21, 128, 61), "output": (194, 65, 12), "static output": (29, 78, 216)}
    for n in layout.nodes:
        for p in n.ports:
            if p.tag and p.facts.tag:
                at = round((p.tag.x + 5) * scale), round((p.tag.y + 3) * scale)
                assert pixels.getpixel(at) == pytest.approx(colours[p.facts.tag], abs=40), p.facts.spot


def test_svg_is_well_formed_and_names_every_port_and_wire(case):
    _, made, picture = case
    root = ElementTree.fromstring(picture.svg().encode())
    assert root.tag == f"{SVG}svg"
    assert float(root.get("width", 0)) == picture.layout.width
    keys = [g.get("data-key") for g in root.iter(f"{SVG}g")]
    for name, n in made.nodes.items():
        assert text.visible(name) in keys
        for p in (*n.inputs, *n.outputs):
            assert f"{text.visible(name)}/{text.visible(p.name)}" in keys
    shown = [element.text for element in root.iter(f"{SVG}text")]
    for label in (label for n in picture.layout.nodes for p in n.ports for label in p.labels):
        assert label.text in shown or not label.text


def test_hostile_names_stay_text(pictures):
    svg = pictures["hostile"].svg()
    root = ElementTree.fromstring(svg.encode())
    known = {"svg", "g", "title", "rect", "polygon", "path", "text"}
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == known
    assert "<script" not in svg
    assert not any(name.startswith("on") for element in root.iter() for name in element.keys())  # noqa: SIM118
    assert "\u202e" not in svg
    titles = " ".join(element.text or "" for element in root.iter(f"{SVG}title"))
    for name in HOSTILE:
        assert text.visible(name) in titles


def test_names_without_a_glyph_stay_distinct_in_the_png():
    a, b = text.drawable("名前", True), text.drawable("名後", True)
    assert a != b
    assert text.text_width("名前", 13, True) > 0


def test_without_any_system_font_the_bundled_one_serves(monkeypatch):
    caches = (text._face, text.font, text._has_glyph, text.text_width)
    monkeypatch.setattr(text, "TYPEFACES", ())
    for cache in caches:
        cache.cache_clear()
    try:
        picture = draw(CASES["hostile"](), "hostile")
        test_no_text_runs_into_other_text(("hostile", None, picture))
        test_everything_lies_on_the_sheet_and_inside_its_node(("hostile", None, picture))
        assert text.drawable("größe", False) == "gr\\xf6\\xdfe"
        assert Image.open(io.BytesIO(picture.png())).size[0] > 500
    finally:
        monkeypatch.undo()
        for cache in caches:
            cache.cache_clear()


def test_write_views_writes_the_same_picture_in_all_files(tmp_path: Path):
    written = write_views(quadruped(), "robot", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["robot.html", "robot.png", "robot.svg"]
    png, svg, html = written
    alone = draw(quadruped(), "robot")
    assert (png.read_bytes(), svg.read_text(encoding="utf-8")) == (alone.png(), alone.svg())
    wires = re.findall(r'<g class="data".*?</g>', svg.read_text(encoding="utf-8"))
    assert wires and all(wire in html.read_text(encoding="utf-8") for wire in wires)


def test_a_graph_name_cannot_leave_the_directory(tmp_path: Path):
    with pytest.raises(BundleError, match="path separators"):
        write_views(states(1), "../outside", tmp_path)


def test_wiring_to_a_port_that_does_not_exist_is_refused():
    broken = Contract(nodes=chain(2).nodes, pipeline=Wiring(data_flow={"stage_0/y": ("stage_1/nothing",)}))
    with pytest.raises(BundleError, match=r"'stage_1/nothing'.*no node has this input"):
        draw(broken, "g")
    with pytest.raises(BundleError, match="output"):
        draw(chain(2), "g", static_outputs={"stage_0/x"})


def test_the_same_contract_gives_the_same_files():
    first, second = (draw(mesh(20, 2), "g") for _ in range(2))
    assert first.png() == second.png()
    assert first.svg() == second.svg()


def test_random_pipelines_keep_the_rules():
    for seed in range(8):
        made = mesh(6 + 4 * seed, seed, feedbacks=seed, reach=2 + 3 * seed)
        picture = draw(made, f"seed {seed}")
        for check in RULES:
            check((f"seed {seed}", made, picture))


def test_a_very_deep_pipeline_does_not_recurse():
    assert len(draw(chain(1500), "deep").layout.nodes) == 1500


def test_an_enormous_picture_is_scaled_to_a_bounded_number_of_pixels():
    assert 30_000 * 20_000 * png_scale(30_000, 20_000) ** 2 == pytest.approx(40e6)


def test_marks_smaller_than_a_pixel_are_drawn(pictures, monkeypatch):
    monkeypatch.setattr(png, "_LARGEST_AREA", 8_000)
    image = Image.open(io.BytesIO(pictures["quadruped"].png()))
    assert image.size < (160, 60)
    assert len(image.getcolors(20_000)) > 20


def test_drawing_is_quick():
    """Twice the promised time, as test machines are shared."""
    draw(quadruped(), "warm").png()
    for make, limit in ((quadruped, 0.6), (CASES["mesh_60"], 4.0)):
        best = min(_seconds(make) for _ in range(3))
        assert best < limit


def _seconds(make) -> float:
    made = make()
    start = time.process_time()
    picture = draw(made, "timed")
    picture.png()
    picture.svg()
    return time.process_time() - start


def test_importing_the_view_loads_no_drawing_or_tensor_library():
    code = (
        "import sys, leapp.view; "
        "bad = {'PIL', 'torch', 'onnx', 'onnxruntime', 'matplotlib', 'numpy', 'yaml'} & set(sys.modules); "
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_node_may_have_no_ports_at_all():
    layout = draw(contract({"silent": node([], []), "talks": node([port("x")], [])}), "g").layout
    assert [n.facts.name for n in layout.nodes] == ["silent", "talks"]
