// The graph: connects the shapes of the SVG with the data, lays it out for the window, zooms, and highlights a selection.
const stage = $('stage'), graph = $('graph'), svg = graph.querySelector('svg'), panel = $('panel');

// In the SVG, the group of a node comes before the groups of its inputs, which come before those of its outputs.
const ports = new Map();
const shapes = [...svg.querySelectorAll('g')];
data.nodes.forEach(node => { node.ports = [...node.inputs.map(p => [p, 'in']), ...node.outputs.map(p => [p, 'out'])]; });
const owner = new Map();
let current = -1, following = 0;
for (const shape of shapes) {
  if (shape.classList.contains('node')) {
    const node = data.nodes[++current];
    node.shape = shape;
    node.box = shape.getBBox();
    owner.set(shape, {node});
    following = 0;
    shape.setAttribute('tabindex', '0');
    shape.setAttribute('role', 'button');
    shape.setAttribute('aria-label', `node ${node.name}, ${node.backend || 'no model'}, ${plural(node.inputs.length, 'input')}, ${plural(node.outputs.length, 'output')}`);
    ring(shape, node.box, 4, 10);
    shape.addEventListener('keydown', e => { if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); e.stopPropagation(); go(node); } });
    shape.addEventListener('focus', () => { if (shape.matches(':focus-visible')) reveal([node.at]); });
  } else if (shape.classList.contains('port')) {
    const node = data.nodes[current];
    const [port, side] = node.ports[following++];
    Object.assign(port, {dims: port.shape, shape, side, node});
    owner.set(shape, {node, port});
    ring(shape, shape.getBBox(), 2, 3);
    ports.set(side + port.key, port);
  }
}
const wireOf = new Map(shapes.filter(s => s.matches('.data, .feedback, .state')).map(s => [s.getAttribute('class') + '\n' + s.dataset.key, s]));
const dotOf = new Map(shapes.filter(s => s.matches('.branch')).map(s => [s.dataset.key, s]));
const halos = [...svg.querySelectorAll('.halo path')], inOrder = [...wireOf.values()];
data.edges.forEach((edge, index) => {
  const name = `${edge.source} → ${edge.target}`;
  edge.index = index;
  edge.shape = wireOf.get(edge.kind + '\n' + name);
  edge.halo = halos[inOrder.indexOf(edge.shape)];
  edge.dot = edge.kind !== 'data' && dotOf.get(name);
  edge.from = ports.get('out' + edge.source);
  edge.to = ports.get('in' + edge.target);
  owner.set(edge.shape, {edge});
  edge.shape.prepend(draw('path', {d: edge.shape.querySelector('path').getAttribute('d'), class: 'hit'}));
});
function ring(shape, b, gap, radius) {
  shape.append(draw('rect', {class: 'ring', x: b.x - gap, y: b.y - gap, width: b.width + 2 * gap, height: b.height + 2 * gap, rx: radius}));
}

// The data has layouts for windows of several proportions. The one that shows everything largest is used.
let layout = 0, all = null;
svg.querySelector('rect').remove();
const bounds = boxes => {
  const x = Math.min(...boxes.map(b => b.x)), y = Math.min(...boxes.map(b => b.y));
  return {x, y, width: Math.max(...boxes.map(b => b.x + b.width)) - x, height: Math.max(...boxes.map(b => b.y + b.height)) - y};
};
const box = () => graph.getBoundingClientRect();
function choose() {
  const b = box();
  const scale = l => Math.min(b.width / (l.width + 32), b.height / (l.height + 32), 1.25);
  const best = data.layouts.reduce((a, l, i) => scale(l) > scale(data.layouts[a]) * 1.04 ? i : a, 0);
  if (best !== layout || !all) place(best);
}
function place(index) {
  layout = index;
  const chosen = data.layouts[index];
  data.nodes.forEach((node, i) => {
    const [dx, dy] = chosen.moves[i];
    const [x, y, width, height] = node.outer;
    node.at = {x: x + dx, y: y + dy, width, height};
    for (const shape of whole(node)) shape.setAttribute('transform', `translate(${dx} ${dy})`);
  });
  for (const edge of data.edges) {
    const [d, x, y, dotX, dotY] = chosen.wires[edge.index];
    for (const path of edge.shape.querySelectorAll('path')) path.setAttribute('d', d);
    edge.halo.setAttribute('d', d);
    edge.shape.querySelector('polygon').setAttribute('points', `${x - 10},${y - 5} ${x},${y} ${x - 10},${y + 5}`);
    const dot = edge.dot && edge.dot.querySelector('rect');
    if (dot) { dot.setAttribute('x', dotX - 3.5); dot.setAttribute('y', dotY - 3.5); }
  }
  all = data.nodes.length ? svg.getBBox() : {x: 0, y: 0, width: 100, height: 100};
}
const whole = node => [node.shape, ...node.ports.map(([p]) => p.shape)];

// Zoom and pan: they change the viewBox of the SVG, at most once a frame.
let view = null, frame = 0, flight = 0, manual = false;
const calm = matchMedia('(prefers-reduced-motion: reduce)');
function show(v) {
  view = v;
  if (!frame) frame = requestAnimationFrame(() => { frame = 0; svg.setAttribute('viewBox', `${view.x} ${view.y} ${view.w} ${view.h}`); });
}
function fly(to) {
  cancelAnimationFrame(flight);
  if (!view || calm.matches) return show(to);
  const from = view, start = performance.now();
  const step = now => {
    const t = Math.min((now - start) / 260, 1), e = t * t * (3 - 2 * t);
    show(Object.fromEntries(['x', 'y', 'w', 'h'].map(k => [k, from[k] + (to[k] - from[k]) * e])));
    if (t < 1) flight = requestAnimationFrame(step);
  };
  flight = requestAnimationFrame(step);
}
// The viewBox in which an area fills the window, enlarged at most `most` times.
function around(area, most, gap = 16) {
  const b = box(), w = area.width + 2 * gap, height = area.height + 2 * gap;
  const scale = Math.min(b.width / w, b.height / height, most) || 1;
  return {w: b.width / scale, h: b.height / scale, x: area.x - gap - (b.width / scale - w) / 2, y: area.y - gap - (b.height / scale - height) / 2};
}
function fit() { manual = false; choose(); fly(around(all, 1.25)); }
function zoom(factor, px, py) {
  manual = true;
  const b = box();
  const w = Math.min(Math.max(view.w * factor, 80), all.width * 8 + 4000), real = w / view.w;
  const fx = px === undefined ? .5 : (px - b.left) / b.width, fy = py === undefined ? .5 : (py - b.top) / b.height;
  show({x: view.x + view.w * (1 - real) * fx, y: view.y + view.h * (1 - real) * fy, w, h: view.h * real});
}
const move = (dx, dy) => { manual = true; show({...view, x: view.x + dx * view.w, y: view.y + dy * view.h}); };
// Move the view until all boxes are visible and large enough to read. It stays if they are already.
function reveal(boxes) {
  const area = bounds(boxes), v = view, target = around(area, 1.1, 28);
  const inside = area.x >= v.x && area.y >= v.y && area.x + area.width <= v.x + v.w && area.y + area.height <= v.y + v.h;
  if (!inside || box().width / v.w < Math.min(.62, box().width / target.w)) fly(target);
}
graph.addEventListener('wheel', e => { e.preventDefault(); zoom(Math.exp(Math.max(-60, Math.min(60, e.deltaY)) * .004), e.clientX, e.clientY); }, {passive: false});
let drag = null;
const fingers = new Map();
graph.addEventListener('pointerdown', e => {
  if (e.button) return;
  cancelAnimationFrame(flight);
  fingers.set(e.pointerId, e);
  drag = {x: e.clientX, y: e.clientY, view, moved: false, target: e.target};
});
addEventListener('pointermove', e => {
  if (!fingers.has(e.pointerId)) return;
  const before = fingers.get(e.pointerId);
  fingers.set(e.pointerId, e);
  if (fingers.size > 1) {
    const other = [...fingers.values()].find(f => f.pointerId !== e.pointerId);
    const span = f => Math.hypot(f.clientX - other.clientX, f.clientY - other.clientY) || 1;
    drag.moved = true;
    zoom(span(before) / span(e), (e.clientX + other.clientX) / 2, (e.clientY + other.clientY) / 2);
    Object.assign(drag, {x: e.clientX, y: e.clientY, view});
    return;
  }
  const dx = e.clientX - drag.x, dy = e.clientY - drag.y;
  if (!drag.moved && Math.hypot(dx, dy) < 4) return;
  drag.moved = manual = true;
  const scale = drag.view.w / box().width;
  show({...drag.view, x: drag.view.x - dx * scale, y: drag.view.y - dy * scale});
});
function lift(e) {
  if (!fingers.delete(e.pointerId) || fingers.size) return;
  if (e.type === 'pointerup' && !drag.moved) touch(drag.target);
}
addEventListener('pointerup', lift);
addEventListener('pointercancel', lift);
function touch(target) {
  const {node, port, edge} = owner.get(target.closest('g')) || {};
  if (edge) follow(edge); else if (node) go(node, port); else home();
}

// Selection: the selected shapes and their neighbours are highlighted, the others faded.
let picked = null;
function light(things, chosen) {
  const on = new Set(things);
  for (const shape of shapes) {
    shape.classList.toggle('faded', on.size > 0 && !on.has(shape));
    shape.classList.toggle('picked', chosen.includes(shape));
    shape.classList.toggle('lit', on.has(shape));
  }
}
const near = (node, port) => data.edges.filter(e => port ? e.from === port || e.to === port : e.from.node === node || e.to.node === node);
function pick(node, port) {
  const edges = near(node, port), nodes = new Set([node, ...edges.flatMap(e => [e.from.node, e.to.node])]);
  light([...edges.map(e => e.shape), ...[...nodes].flatMap(whole)], port ? [port.shape] : [node.shape]);
  picked = [...nodes].map(n => n.at);
  $('said').textContent = port ? `port ${port.key}` : `node ${node.name}`;
  fill(nodePanel(node, port), true);
  if (port) panel.querySelector('.card.picked')?.scrollIntoView({block: 'center'});
  reveal(picked);
}
function follow(edge) {
  light([edge.shape, ...whole(edge.from.node), ...whole(edge.to.node)], [edge.from.shape, edge.to.shape]);
  picked = [edge.from.node.at, edge.to.node.at];
  $('said').textContent = `${edge.kind} from ${edge.source} to ${edge.target}`;
  fill(edgePanel(edge), true);
  reveal(picked);
}
function several(nodes, title) {
  light(nodes.flatMap(whole), nodes.map(n => n.shape));
  picked = nodes.map(n => n.at);
  $('said').textContent = title;
  reveal(picked);
}
function overview(open) { light([], []); picked = null; fill(overviewPanel(), open); }
function fill(content, open) {
  panel.replaceChildren(...content.flat(Infinity).filter(Boolean));
  panel.scrollTop = 0;
  if (open) fold(false);
}

// The address of the page names the selection, so that it can be sent as a link and the Back button returns to it.
const address = (node, port) => '#' + encodeURIComponent(port ? port.key : node.name);
function go(node, port) {
  const wanted = address(node, port);
  if (location.hash === wanted) pick(node, port); else location.hash = wanted;
}
function home() { if (location.hash) location.hash = ''; else overview(false); }
function arrive() {
  let name = '';
  try { name = decodeURIComponent(location.hash.slice(1)); } catch { /* the part after # is not percent-encoded text */ }
  const node = data.nodes.find(n => n.name === name);
  const port = ports.get('out' + name) || ports.get('in' + name);
  if (node) pick(node); else if (port) pick(port.node, port); else overview(false);
}
addEventListener('hashchange', arrive);

// The side panel can be folded. In a narrow window it is folded until something is selected.
const narrow = () => innerWidth < 1000;
function fold(folded) {
  const before = panel.hidden;
  panel.hidden = folded;
  document.body.classList.toggle('open', !folded);
  $('fold').setAttribute('aria-expanded', String(!folded));
  return before !== folded;
}
function toggleFold() {
  fold(!panel.hidden);
  if (!narrow()) stored('leapp-panel', panel.hidden ? 'folded' : 'open');
  if (!picked && !manual) fit();
}
let extent = '';
new ResizeObserver(() => {
  const b = box(), now = `${b.width} ${b.height}`;
  if (!view || now === extent || !b.width || !b.height) return;
  extent = now;
  if (picked) { cancelAnimationFrame(flight); show(around(bounds(picked), 1.1, 28)); }
  else if (manual) show({...view, h: view.w * b.height / b.width});
  else { choose(); cancelAnimationFrame(flight); show(around(all, 1.25)); }
}).observe(graph);
