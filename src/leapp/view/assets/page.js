'use strict';
(() => {
const data = JSON.parse(document.getElementById('data').textContent);
const $ = id => document.getElementById(id);
const graph = $('graph'), svg = graph.querySelector('svg'), panel = $('panel'), search = $('search'), hits = $('hits');
const SVG = 'http://www.w3.org/2000/svg';

// Everything shown goes through text nodes: no name can become markup.
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(Infinity).filter(c => c !== null && c !== undefined && c !== false && c !== ''));
  return element;
}
function draw(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
const number = n => typeof n === 'number' ? n.toLocaleString('en') : String(n);
const short = n => typeof n !== 'number' ? String(n ?? '–') : n && Math.abs(n) < 1e-3 ? n.toExponential(1) : String(Number(n.toPrecision(3)));
const size = bytes => bytes < 1024 ? `${bytes} B` : bytes < 1048576 ? `${short(bytes / 1024)} KiB` : `${short(bytes / 1048576)} MiB`;
const say = v => typeof v === 'string' ? v : v === null ? 'null' : Array.isArray(v) ? v.map(say).join(', ') : typeof v === 'object' ? JSON.stringify(v) : String(v);
const form = port => `[${port.dims.join(', ')}] ${port.dtype}`;

// The picture and the data, joined by order: a node's group is followed by those of its inputs, then its outputs.
const ports = new Map(), wires = [];
const shapes = [...svg.querySelectorAll('g')];
data.nodes.forEach(node => { node.ports = [...node.inputs.map(p => [p, 'in']), ...node.outputs.map(p => [p, 'out'])]; });
let current = -1, next = 0;
for (const shape of shapes) {
  if (shape.classList.contains('node')) {
    const node = data.nodes[++current];
    node.shape = shape;
    next = 0;
    shape.setAttribute('tabindex', '0');
    shape.setAttribute('role', 'button');
    shape.setAttribute('aria-label', `node ${node.name}`);
    ring(shape, 4, 10);
    shape.addEventListener('keydown', e => { if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); pick(node); } });
    shape.addEventListener('focus', () => { if (shape.matches(':focus-visible')) reveal(shape); });
  } else if (shape.classList.contains('port')) {
    const node = data.nodes[current];
    const [port, side] = node.ports[next++];
    Object.assign(port, {dims: port.shape, shape, side, node});
    ring(shape, 2, 3);
    ports.set(side + port.key, port);
  } else if (['data', 'feedback', 'state'].some(kind => shape.classList.contains(kind))) {
    wires.push(shape);
  }
}
const byKey = new Map(wires.map(shape => [shape.getAttribute('class') + '\n' + shape.dataset.key, shape]));
for (const edge of data.edges) {
  edge.shape = byKey.get(edge.kind + '\n' + `${edge.source} → ${edge.target}`);
  edge.from = ports.get('out' + edge.source);
  edge.to = ports.get('in' + edge.target);
  const line = edge.shape.querySelector('polyline');
  edge.shape.prepend(draw('polyline', {points: line.getAttribute('points'), class: 'hit'}));
}
function ring(shape, gap, radius) {
  const b = shape.getBBox();
  shape.append(draw('rect', {class: 'ring', x: b.x - gap, y: b.y - gap, width: b.width + 2 * gap, height: b.height + 2 * gap, rx: radius}));
}

// Moving about: one view box, changed once a frame.
const ground = svg.querySelector('rect');
ground.remove();
const all = svg.getBBox();
let view = null, frame = 0;
const box = () => graph.getBoundingClientRect();
function show(v) {
  view = v;
  if (!frame) frame = requestAnimationFrame(() => { frame = 0; svg.setAttribute('viewBox', `${view.x} ${view.y} ${view.w} ${view.h}`); });
}
function fit() {
  const b = box(), w = all.width + 48, height = all.height + 48;
  const scale = Math.min(b.width / w, b.height / height, 1.5) || 1;
  show({w: b.width / scale, h: b.height / scale, x: all.x - 24 - (b.width / scale - w) / 2, y: all.y - 24 - (b.height / scale - height) / 2});
}
function zoom(factor, px, py) {
  const b = box();
  const w = Math.min(Math.max(view.w * factor, 80), all.width * 8 + 4000), real = w / view.w;
  const fx = px === undefined ? .5 : (px - b.left) / b.width, fy = py === undefined ? .5 : (py - b.top) / b.height;
  show({x: view.x + view.w * (1 - real) * fx, y: view.y + view.h * (1 - real) * fy, w, h: view.h * real});
}
const move = (dx, dy) => show({...view, x: view.x + dx * view.w, y: view.y + dy * view.h});
function reveal(shape) {
  const b = shape.getBBox();
  let v = view;
  // Too far out to read: come close, not closer than natural size.
  if (box().width / v.w < .5) { const w = box().width / .9; v = {x: v.x, y: v.y, w, h: v.h * w / v.w}; }
  const inside = v === view && b.x > v.x && b.y > v.y && b.x + b.width < v.x + v.w && b.y + b.height < v.y + v.h;
  if (!inside) show({...v, x: b.x + b.width / 2 - v.w / 2, y: b.y + b.height / 2 - v.h / 2});
}
graph.addEventListener('wheel', e => { e.preventDefault(); zoom(Math.exp(Math.max(-60, Math.min(60, e.deltaY)) * .004), e.clientX, e.clientY); }, {passive: false});
let drag = null;
const fingers = new Map();
graph.addEventListener('pointerdown', e => {
  if (e.button) return;
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
    drag.x = e.clientX; drag.y = e.clientY; drag.view = view;
    return;
  }
  const dx = e.clientX - drag.x, dy = e.clientY - drag.y;
  if (!drag.moved && Math.hypot(dx, dy) < 4) return;
  drag.moved = true;
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
  const shape = target.closest('g');
  const edge = data.edges.find(e => e.shape === shape);
  const node = data.nodes.find(n => n.shape === shape);
  const port = [...ports.values()].find(p => p.shape === shape);
  if (edge) follow(edge); else if (node) pick(node); else if (port) pick(port.node, port); else overview();
}

// What is picked stands out, the rest fades.
function light(things, picked) {
  const on = new Set(things);
  for (const shape of shapes) {
    const known = shape.classList.contains('legend') || !on.size || on.has(shape);
    shape.classList.toggle('faded', !known);
    shape.classList.toggle('picked', picked.includes(shape));
    shape.classList.toggle('lit', on.has(shape));
  }
}
const whole = node => [node.shape, ...node.ports.map(([p]) => p.shape)];
function pick(node, port) {
  const edges = data.edges.filter(e => port ? e.from === port || e.to === port : e.from.node === node || e.to.node === node);
  const near = edges.flatMap(e => [e.shape, ...whole(e.from.node), ...whole(e.to.node)]);
  light([...whole(node), ...near], port ? [port.shape] : [node.shape]);
  reveal(port ? port.shape : node.shape);
  fill(nodePanel(node, port));
  if (port) panel.querySelector('.card.picked')?.scrollIntoView({block: 'center'});
}
function follow(edge) {
  light([edge.shape, ...whole(edge.from.node), ...whole(edge.to.node)], [edge.from.shape, edge.to.shape]);
  fill(edgePanel(edge));
}
function overview() { light([], []); fill(overviewPanel()); }
function fill(content) { panel.replaceChildren(...content.flat(Infinity).filter(Boolean)); panel.scrollTop = 0; }

// Panels.
const jump = port => h('button', {class: 'link', onclick: () => pick(port.node, port)}, port.key);
const place = at => at.file ? `${at.file.split('/').pop()}:${at.line}` : '';
const list = items => h('dl', {}, items.filter(([, v]) => v !== null && v !== undefined && v !== '').map(([k, v]) => [h('dt', {}, k), h('dd', {}, v)]));
function heading(text, kind) {
  const close = h('button', {title: 'Back to the overview (Esc)', 'aria-label': 'Close', onclick: overview}, '×');
  return h('div', {class: 'top'}, h('h2', {}, text, kind ? h('span', {class: 'soft'}, ` · ${kind}`) : ''), close);
}
function role(port) {
  if (port.side === 'in') {
    if (data.inputs.includes(port.key)) return h('span', {class: 'good'}, 'graph input: you give it');
    const edge = data.edges.find(e => e.to === port);
    if (!edge) return h('span', {class: 'soft'}, 'not connected');
    const words = {data: 'from ', feedback: 'last pass of ', state: 'state, from '}[edge.kind];
    return h('span', {}, words, jump(edge.from));
  }
  const parts = [];
  if (data.outputs.includes(port.key)) parts.push(h('span', {class: 'warn'}, 'graph output'));
  if (data.static.includes(port.key)) parts.push(h('span', {}, 'never changes'));
  for (const edge of data.edges.filter(e => e.from === port)) {
    parts.push(h('span', {}, {data: 'to ', feedback: 'next pass of ', state: 'state, to '}[edge.kind], jump(edge.to)));
  }
  return h('span', {}, parts.flatMap((part, i) => i ? [' · ', part] : [part]));
}
function axes(port) {
  const all = port.elements || [];
  return !all.length || all.some(a => Array.isArray(a) || a === null || a === '__temporal_axis__') ? all : [all];
}
function elements(port) {
  return axes(port).map(axis => {
    if (axis === '__temporal_axis__') return h('p', {class: 'soft'}, `one axis runs over time${port.period ? `, ${port.period} ms apart` : ''}`);
    if (!Array.isArray(axis) || !axis.length) return null;
    const names = axis.map(String);
    const items = h('ol', {class: names.some(n => n.length > 24) ? 'names one' : 'names', start: 0}, names.map(n => h('li', {}, n)));
    return h('details', {open: names.length <= 6}, h('summary', {}, `${names.length} element name${names.length > 1 ? 's' : ''}, in order`), items);
  });
}
function spark(port) {
  const s = port.spark;
  if (!s) return null;
  const low = s.low ?? 0, high = s.high ?? 0, span = high - low || 1;
  const picture = draw('svg', {class: 'spark', viewBox: '0 0 100 20', preserveAspectRatio: 'none', role: 'img'});
  const y = v => 19 - 18 * (high === low ? .5 : (v - low) / span);
  (s.lines || []).forEach((line, i) => {
    const at = line.map((v, x) => v === null ? null : `${(100 * x / Math.max(line.length - 1, 1)).toFixed(2)},${y(v).toFixed(2)}`).filter(Boolean);
    const drawn = draw('polyline', {points: at.join(' '), opacity: 1 - i * .13});
    drawn.append(draw('title', {}));
    drawn.lastChild.textContent = `element ${s.picked[i]}`;
    picture.append(drawn);
  });
  (s.bars || []).forEach((v, x, bars) => {
    if (v === null) return;
    const zero = y(Math.min(Math.max(0, low), high)), top = y(v), w = 100 / Math.max(bars.length, 8);
    picture.append(draw('rect', {x: x * w + w * .1, width: w * .8, y: Math.min(zero, top), height: Math.max(Math.abs(zero - top), .6)}));
  });
  const shown = s.lines ? s.lines.length : s.bars.length;
  const what = s.lines ? `${s.passes} samples` + (s.size > shown ? `, the ${shown} of ${s.size} elements that vary most` : '') : `one sample, ${shown} of ${s.size} elements`;
  picture.append(draw('title', {}));
  picture.lastChild.textContent = `${what}, ${short(s.low)} to ${short(s.high)}`;
  return [picture, h('div', {class: 'scale'}, h('span', {}, what), h('span', {}, `${short(s.low)} … ${short(s.high)}`))];
}
function histogram(v) {
  if (!v) return null;
  const tens = Object.keys(v.bins || {}).map(Number).sort((a, b) => a - b);
  const bars = [['0', v.exact || 0]];
  if (tens.length) for (let e = tens[0]; e <= tens[tens.length - 1]; e++) bars.push([`1e${e}`, v.bins[e] || 0]);
  const top = Math.max(...bars.map(b => b[1]), 1), w = 100 / Math.max(bars.length, 8);
  const picture = draw('svg', {class: 'spark', viewBox: '0 0 100 20', preserveAspectRatio: 'none', role: 'img'});
  bars.forEach(([label, count], i) => {
    const height = count ? Math.max(18 * Math.sqrt(count / top), 1) : 0;
    const bar = draw('rect', {x: i * w + w * .1, width: w * .8, y: 20 - height, height});
    bar.append(draw('title', {}));
    bar.lastChild.textContent = `${label}: ${number(count)} values`;
    picture.append(bar);
  });
  const range = tens.length ? `equal, 1e${tens[0]} … 1e${tens[tens.length - 1]}` : 'all equal';
  return h('div', {}, h('p', {}, `largest difference ${short(v.largest)}`, h('span', {class: 'soft'}, ` over ${number(v.count)} values`)),
    picture, h('div', {class: 'scale'}, h('span', {}, 'differences from the traced values'), h('span', {}, range)));
}
function card(port, picked) {
  const extra = Object.entries(port.extra || {});
  return h('div', {class: picked ? 'card picked' : 'card'},
    h('div', {class: 'row'}, h('b', {}, port.name), h('span', {class: 'mono soft'}, form(port))),
    (port.kind || port.units) && h('div', {class: 'row'}, h('span', {class: 'kind'}, port.kind || ''), port.units ? h('span', {}, `in ${say(port.units)}`) : ''),
    h('div', {}, role(port)),
    elements(port),
    extra.length ? list(extra.map(([k, v]) => [k, say(v)])) : null,
    spark(port),
    port.side === 'out' && histogram(data.validation[port.key]));
}
function source(node) {
  const rows = [];
  for (const op of node.ops || []) {
    const last = rows[rows.length - 1];
    if (last && last.file === op.file && last.line === op.line) last.ops.push(op.op);
    else rows.push({...op, ops: [op.op]});
  }
  if (!rows.length) return null;
  const limit = 300;
  const body = rows.slice(0, limit).map(r => h('tr', {}, h('td', {class: 'mono', title: `${r.file}:${r.line}`}, h('small', {}, place(r)), r.text || ''), h('td', {class: 'mono'}, r.ops.join('\n'))));
  return [h('h3', {}, `Traced source · ${number(node.op_count ?? node.ops.length)} ops`),
    h('table', {class: 'source'}, h('colgroup', {}, h('col', {}), h('col', {})), h('tr', {}, h('th', {}, 'your line'), h('th', {}, 'recorded')), body),
    (rows.length > limit || node.op_count > node.ops.length) && h('p', {class: 'soft'}, '… and more, not shown.')];
}
const escapes = (items, named) => items.map(e => h('div', {class: 'card'},
  h('div', {class: 'row'}, h('b', {}, e.kind), h('span', {class: 'soft'}, named ? `${named(e)} · ` : '', place(e))),
  e.text && h('div', {}, h('code', {}, e.text)),
  h('div', {}, 'frozen: ', h('span', {class: 'mono'}, say(e.value ?? '')), e.varies ? h('span', {class: 'bad'}, ' · differs between passes') : '')));
function verdict(passed) {
  if (passed === undefined || passed === null) return null;
  if (passed === true) return h('span', {class: 'good'}, 'reproduces the traced values');
  return h('span', {class: 'bad'}, passed === false ? 'does not reproduce the traced values' : say(passed));
}
function nodePanel(node, picked) {
  const hash = node.sha256 && h('code', {title: node.sha256}, node.sha256.slice(0, 16) + '…');
  const constants = node.constants || [];
  return [heading(node.name, 'node'),
    list([['backend', node.backend || 'no model'], ['parameters', node.parameters === undefined ? null : number(node.parameters)],
      ['file', node.file && h('code', {}, node.file)], ['sha256', hash],
      ['one run', node.seconds === undefined || node.seconds === null ? null : `${short(node.seconds * 1e6)} µs where this page was written`],
      ['validation', verdict(node.passed)],
      ...Object.entries(node.extra || {}).map(([k, v]) => [k.replaceAll('_', ' '), say(v)])]),
    h('h3', {}, `Inputs · ${node.inputs.length}`), node.inputs.map(p => card(p, p === picked)),
    h('h3', {}, `Outputs · ${node.outputs.length}`), node.outputs.map(p => card(p, p === picked)),
    source(node),
    node.escapes?.length ? [h('h3', {}, `Escapes · ${node.escapes.length}`), escapes(node.escapes)] : null,
    node.pruned?.length ? [h('h3', {}, 'Pruned inputs'), h('p', {}, node.pruned.join(', '), h('span', {class: 'soft'}, ' – no output depends on them'))] : null,
    node.random?.length ? [h('h3', {}, 'Random numbers'), h('p', {}, node.random.join(', '))] : null,
    constants.length ? [h('h3', {}, `Constants · ${constants.length}`), h('table', {}, h('tr', {}, ['name', 'value', 'size', 'read at'].map(t => h('th', {}, t))),
      constants.map(c => h('tr', {}, h('td', {}, c.name), h('td', {class: 'mono'}, `[${c.shape.join(', ')}] ${c.dtype}`), h('td', {}, size(c.bytes)), h('td', {title: `${c.file}:${c.line}`}, place(c)))))] : null];
}
function edgePanel(edge) {
  const words = {data: 'edge: the value of the same pass', feedback: 'feedback: the value of the pass before', state: 'state: kept inside the node'};
  return [heading(words[edge.kind].split(':')[0]), h('p', {class: 'soft'}, words[edge.kind].split(': ')[1]),
    h('h3', {}, 'From'), h('p', {}, jump(edge.from)), card(edge.from), h('h3', {}, 'To'), h('p', {}, jump(edge.to)), card(edge.to)];
}
function order(port) {
  const most = 6;
  return axes(port).filter(Array.isArray).map(names => h('div', {class: 'soft', title: names.join(', ')},
    names.slice(0, most).join(', ') + (names.length > most ? ` … ${names.length - most} more` : '')));
}
function brief(key, side, index) {
  const port = ports.get(side + key);
  return h('tr', {}, h('td', {class: 'soft'}, String(index + 1)), h('td', {}, jump(port), port.kind ? h('div', {class: 'kind'}, port.kind) : '', order(port)),
    h('td', {class: 'mono'}, `[${port.dims.join(', ')}]`, h('br'), port.dtype), h('td', {}, port.units ? say(port.units) : '–'));
}
function overviewPanel() {
  const table = (keys, side) => h('table', {class: 'brief'}, h('tr', {}, ['', 'port', 'value', 'units'].map(t => h('th', {}, t))), keys.map((k, i) => brief(k, side, i)));
  const kept = data.edges.filter(e => e.kind !== 'data');
  const escaped = data.nodes.flatMap(n => (n.escapes || []).map(e => ({...e, node: n.name})));
  const pruned = data.nodes.filter(n => n.pruned?.length);
  const proven = data.nodes.filter(n => n.passed !== undefined && n.passed !== null);
  const failed = proven.filter(n => n.passed !== true);
  const worst = Object.entries(data.validation).filter(([, v]) => typeof v.largest === 'number').sort((a, b) => b[1].largest - a[1].largest)[0];
  const frequency = data.configs.frequency;
  const reported = escaped.length || data.glue.length || pruned.length || proven.length || worst;
  return [h('h2', {}, data.name), h('p', {class: 'soft'}, frequency ? `One step every ${short(1000 / frequency)} ms (${frequency} Hz).` : 'The bundle names no rate.'),
    h('h3', {}, `You give, each step · ${data.inputs.length}`), table(data.inputs, 'in'),
    h('h3', {}, `You receive · ${data.outputs.length}`), table(data.outputs, 'out'),
    kept.length ? [h('h3', {}, `Kept between steps · ${kept.length}`), h('ul', {class: 'plain'}, kept.map(e => h('li', {}, jump(e.from), ' → ', jump(e.to))))] : null,
    data.gaps.length ? [h('h3', {}, 'Missing for deployment'), h('ul', {class: 'plain warn'}, data.gaps.map(g => h('li', {}, g)))] : null,
    reported ? h('h3', {}, 'Compile report') : null,
    proven.length ? h('p', {}, failed.length ? h('span', {class: 'bad'}, `${failed.length} of ${proven.length} nodes do not reproduce the traced values: ${failed.map(n => n.name).join(', ')}`) : h('span', {class: 'good'}, `${proven.length} of ${proven.length} nodes reproduce the traced values.`)) : null,
    worst ? [h('p', {}, 'Largest at ', jump(ports.get('out' + worst[0])), ':'), histogram(worst[1])] : null,
    escaped.length ? [h('p', {class: 'warn'}, `${escaped.length} value${escaped.length > 1 ? 's' : ''} left the graph and ${escaped.length > 1 ? 'are' : 'is'} frozen:`), escapes(escaped, e => e.node)] : null,
    data.glue.length ? [h('p', {class: 'warn'}, 'Changed between nodes (not part of any model):'), data.glue.map(g => h('div', {class: 'card'}, h('b', {}, g.source), ` before ${g.node} · `, h('span', {class: 'soft'}, place(g)), h('div', {class: 'mono'}, g.ops.join('\n'))))] : null,
    pruned.length ? h('p', {}, 'Pruned inputs: ', pruned.map(n => `${n.name}: ${n.pruned.join(', ')}`).join('; ')) : null,
    h('h3', {}, 'Made with'), list([...Object.entries(data.system).map(([k, v]) => [k, v === null ? null : say(v)]), ...Object.entries(data.configs).filter(([k]) => k !== 'frequency').map(([k, v]) => [k, say(v)]), ['digest', data.digest && h('code', {title: data.digest}, data.digest.slice(0, 16) + '…')]]),
    h('p', {class: 'soft'}, 'Keys: / find · Tab nodes · Enter open · arrows move · + − zoom · 0 fit · o overview · d dark or light · Esc back')];
}

// Search: every word must occur somewhere in what is known of a node or port.
const places = [];
for (const node of data.nodes) {
  places.push({label: node.name, note: `node · ${node.backend || 'no model'}`, text: [node.name, node.backend, node.file].join(' '), go: () => pick(node)});
  for (const [port, side] of node.ports) {
    const names = port.elements ? port.elements.flat(2).join(' ') : '';
    places.push({label: port.key, note: [side === 'in' ? 'input' : 'output', form(port), port.kind, port.units && say(port.units)].filter(Boolean).join(' · '),
      text: [port.key, port.kind, port.units && say(port.units), port.dtype, names].join(' '), go: () => pick(node, port)});
  }
}
places.forEach(p => { p.text = p.text.toLowerCase(); });
let found = [], chosen = 0;
function look() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  found = words.length ? places.filter(p => words.every(w => p.text.includes(w))) : [];
  found.sort((a, b) => words.every(w => b.label.toLowerCase().includes(w)) - words.every(w => a.label.toLowerCase().includes(w)));
  const total = found.length;
  found = found.slice(0, 40);
  chosen = 0;
  hits.replaceChildren(...found.map((p, i) => h('li', {role: 'option', id: `hit${i}`, onpointerdown: e => { e.preventDefault(); choose(i); }}, p.label, h('small', {}, p.note))));
  if (words.length && !total) hits.append(h('li', {class: 'soft'}, 'Nothing found.'));
  if (total > found.length) hits.append(h('li', {class: 'soft'}, `… and ${total - found.length} more`));
  hits.hidden = !words.length;
  search.setAttribute('aria-expanded', String(!hits.hidden));
  mark();
}
function mark() {
  found.forEach((_, i) => hits.children[i].setAttribute('aria-selected', String(i === chosen)));
  if (found.length) { search.setAttribute('aria-activedescendant', `hit${chosen}`); hits.children[chosen].scrollIntoView({block: 'nearest'}); }
}
function choose(i) { if (found[i]) { hits.hidden = true; search.setAttribute('aria-expanded', 'false'); found[i].go(); } }
search.addEventListener('input', look);
search.addEventListener('focus', () => { if (search.value) look(); });
search.addEventListener('blur', () => { hits.hidden = true; });
search.addEventListener('keydown', e => {
  if (e.key === 'ArrowDown' || e.key === 'ArrowUp') { e.preventDefault(); if (found.length) { chosen = (chosen + (e.key === 'ArrowDown' ? 1 : found.length - 1)) % found.length; mark(); } }
  else if (e.key === 'Enter') choose(chosen);
  else if (e.key === 'Escape') { search.value = ''; look(); graph.focus(); e.stopPropagation(); }
});

// Dark or light: as the system says, until the reader says otherwise.
const system = matchMedia('(prefers-color-scheme: dark)');
let theme = null;
try { theme = localStorage.getItem('leapp-theme'); } catch { /* a file page may have no storage */ }
const paint = () => { document.documentElement.dataset.theme = theme || (system.matches ? 'dark' : 'light'); };
function toggle() {
  theme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  try { localStorage.setItem('leapp-theme', theme); } catch { /* then it lasts as long as the page */ }
  paint();
}
system.addEventListener('change', paint);

const keys = {'+': () => zoom(.8), '=': () => zoom(.8), '-': () => zoom(1.25), '0': fit, o: overview, d: toggle, Escape: overview,
  '/': () => { search.focus(); search.select(); },
  ArrowLeft: () => move(-.1, 0), ArrowRight: () => move(.1, 0), ArrowUp: () => move(0, -.1), ArrowDown: () => move(0, .1)};
addEventListener('keydown', e => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target === search) return;
  // Arrows scroll the panel when it has the focus.
  if (e.key.startsWith('Arrow') && panel.contains(e.target)) return;
  if (keys[e.key]) { e.preventDefault(); keys[e.key](); }
});
$('in').onclick = () => zoom(.8);
$('out').onclick = () => zoom(1.25);
$('fit').onclick = fit;
$('theme').onclick = toggle;
$('overview').onclick = overview;
addEventListener('resize', () => { const b = box(); show({...view, h: view.w * b.height / b.width}); });

$('summary').textContent = data.summary;
svg.removeAttribute('width');
svg.removeAttribute('height');
paint();
overview();
fit();
})();
