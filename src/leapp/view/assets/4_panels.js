// The side panel of the whole graph, of a node and of an edge.
const jump = port => h('button', {class: 'link', onclick: () => go(port.node, port)}, soft(port.key));
const where = at => at.file ? `${at.file.split('/').pop()}:${at.line}` : '';
const list = items => h('dl', {}, items.filter(([, v]) => v !== null && v !== undefined && v !== '').map(([k, v]) => [h('dt', {}, k), h('dd', {}, v)]));
function heading(text, kind) {
  const close = h('button', {title: 'Back to the overview (Esc)', 'aria-label': 'Close', onclick: home}, '×');
  return h('div', {class: 'top'}, h('h2', {}, soft(text), kind ? h('span', {class: 'soft'}, ` · ${kind}`) : ''), close);
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
const axes = port => port.element_names || [];
function elements(port) {
  return axes(port).map(axis => {
    if (axis === '__temporal_axis__') return h('p', {class: 'soft'}, `one axis runs over time${port.temporal_period_ms ? `, ${port.temporal_period_ms} ms apart` : ''}`);
    if (!Array.isArray(axis) || !axis.length) return null;
    const names = axis.map(String);
    const items = h('ol', {class: names.some(n => n.length > 24) ? 'names one' : 'names', start: 0}, names.map(n => h('li', {}, soft(n))));
    return h('details', {open: names.length <= 6}, h('summary', {}, `${plural(names.length, 'element name')}, in order`), items);
  });
}
function card(port, chosen) {
  const extra = Object.entries(port.extra || {});
  return h('div', {class: chosen ? 'card picked' : 'card'},
    h('div', {class: 'row'}, h('b', {}, soft(port.name)), h('span', {class: 'mono soft'}, form(port))),
    (port.kind || port.units) && h('div', {class: 'row'}, h('span', {class: 'kind'}, soft(port.kind || '')), port.units ? h('span', {}, `in ${say(port.units)}`) : ''),
    h('div', {}, role(port)),
    elements(port),
    extra.length ? list(extra.map(([k, v]) => [k, say(v)])) : null,
    spark(port),
    port.side === 'out' && differences(data.validation[port.key]));
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
  const body = rows.slice(0, limit).map(r => h('tr', {}, h('td', {class: 'mono', title: `${r.file}:${r.line}`}, h('small', {}, where(r)), r.text || ''), h('td', {class: 'mono'}, r.ops.join('\n'))));
  return [h('h3', {}, `Traced source · ${plural(node.op_count ?? node.ops.length, 'op')}`),
    h('table', {class: 'source'}, h('colgroup', {}, h('col', {}), h('col', {})), h('tr', {}, h('th', {}, 'your line'), h('th', {}, 'recorded')), body),
    (rows.length > limit || node.op_count > node.ops.length) && h('p', {class: 'soft'}, '… and more, not shown.')];
}
// The operators of the model file in order, each with the shapes of its outputs.
function operators(node) {
  const found = node.operators;
  if (!found) return null;
  const counts = {};
  for (const op of found.list) counts[op.op] = (counts[op.op] || 0) + 1;
  const kinds = Object.entries(counts).sort((a, b) => b[1] - a[1]).slice(0, 8).map(([name, n]) => n > 1 ? `${name} × ${n}` : name).join(', ');
  const value = v => h('div', {}, soft(v[0]), v[1] ? h('span', {class: 'soft mono'}, ` ${v[1]}`) : '');
  const row = (op, i) => h('li', {}, h('details', {}, h('summary', {}, h('span', {class: 'at'}, String(i + 1)), h('b', {}, op.op), h('span', {class: 'form mono'}, op.out.map(v => v[1]).filter(Boolean).join('  '))),
    list([['takes', op.in.map(value)], ['makes', op.out.map(value)], ...Object.entries(op.attributes || {}).map(([k, v]) => [k, say(v)])])));
  return [h('h3', {}, `Operators · ${number(found.total)}`), h('p', {class: 'soft'}, kinds),
    h('details', {open: found.list.length <= 12}, h('summary', {}, 'in order of execution'), h('ol', {class: 'ops'}, found.list.map(row))),
    found.total > found.list.length && h('p', {class: 'soft'}, `… and ${number(found.total - found.list.length)} more, not shown.`)];
}
function weights(node) {
  const found = node.weights;
  if (!found || !found.list.length) return null;
  const rows = found.list.map(w => h('div', {class: 'card'},
    h('div', {class: 'row'}, h('b', {}, soft(w.name)), h('span', {class: 'mono soft'}, `[${w.shape.join(', ')}] ${w.dtype}`)),
    w.low === undefined ? h('div', {class: 'soft'}, w.note || 'no finite values')
      : h('div', {class: 'soft'}, `${short(w.low)} to ${short(w.high)}, mean ${short(w.mean)}`, w.sampled ? `, from ${number(w.sampled)} of ${number(w.count)} values` : '', w.odd ? h('span', {class: 'bad'}, `, ${number(w.odd)} not finite`) : ''),
    spread(w)));
  return [h('h3', {}, `Weights · ${number(found.total)}`), h('details', {open: found.list.length <= 6}, h('summary', {}, 'shape, range and how the values are spread'), rows),
    found.total > found.list.length && h('p', {class: 'soft'}, `… and ${number(found.total - found.list.length)} more, not shown.`)];
}
const escapes = (items, named) => items.map(e => h('div', {class: 'card'},
  h('div', {class: 'row'}, h('b', {}, e.kind), h('span', {class: 'soft'}, named ? `${named(e)} · ` : '', where(e))),
  e.text && h('div', {}, h('code', {}, e.text)),
  h('div', {}, 'frozen: ', h('span', {class: 'mono'}, say(e.value ?? '')), e.varies ? h('span', {class: 'bad'}, ' · differs between passes') : '')));
function verdict(passed) {
  if (passed === undefined || passed === null) return null;
  if (passed === true) return h('span', {class: 'good'}, 'reproduces the traced values');
  return h('span', {class: 'bad'}, passed === false ? 'does not reproduce the traced values' : say(passed));
}
const timed = data.nodes.filter(n => typeof n.seconds === 'number'), spent = timed.reduce((sum, n) => sum + n.seconds, 0);
function share(node) {
  if (typeof node.seconds !== 'number') return null;
  const part = spent ? node.seconds / spent : 0;
  return h('span', {}, `${seconds(node.seconds)}, ${short(100 * part)} % of a step`, h('span', {class: 'share'}, h('i', {style: `width: ${100 * part}%`})));
}
function nodePanel(node, chosen) {
  const hash = node.sha256 && h('code', {title: node.sha256}, node.sha256.slice(0, 16) + '…');
  const constants = node.constants || [];
  return [heading(node.name, 'node'),
    list([['backend', node.backend || 'no model'], ['parameters', node.parameters === undefined ? null : number(node.parameters)],
      ['file', node.file && h('code', {}, soft(node.file))], ['sha256', hash], ['one run', share(node)],
      ['validation', verdict(node.passed)],
      ...Object.entries(node.extra || {}).map(([k, v]) => [k.replaceAll('_', ' '), say(v)])]),
    h('h3', {}, `Inputs · ${node.inputs.length}`), node.inputs.map(p => card(p, p === chosen)),
    h('h3', {}, `Outputs · ${node.outputs.length}`), node.outputs.map(p => card(p, p === chosen)),
    operators(node), weights(node), source(node),
    node.escapes?.length ? [h('h3', {}, `Escapes · ${node.escapes.length}`), escapes(node.escapes)] : null,
    node.pruned?.length ? [h('h3', {}, 'Pruned inputs'), h('p', {}, node.pruned.join(', '), h('span', {class: 'soft'}, ' – no output depends on them'))] : null,
    node.random?.length ? [h('h3', {}, 'Random numbers'), h('p', {}, node.random.join(', '))] : null,
    constants.length ? [h('h3', {}, `Constants · ${constants.length}`), h('table', {}, h('tr', {}, ['name', 'value', 'size', 'read at'].map(t => h('th', {}, t))),
      constants.map(c => h('tr', {}, h('td', {}, soft(c.name)), h('td', {class: 'mono'}, `[${c.shape.join(', ')}] ${c.dtype}`), h('td', {}, size(c.bytes)), h('td', {title: `${c.file}:${c.line}`}, where(c)))))] : null];
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
  return h('tr', {}, h('td', {class: 'soft'}, String(index + 1)), h('td', {}, jump(port), port.kind ? h('div', {class: 'kind'}, soft(port.kind)) : '', order(port)),
    h('td', {class: 'mono'}, `[${port.dims.join(', ')}]`, h('br'), port.dtype), h('td', {}, port.units ? say(port.units) : '–'));
}
// Groups of nodes whose names have the same prefix, without a group of one node or of all nodes.
function groups() {
  const found = new Map();
  for (const node of data.nodes) {
    const prefix = node.name.split(/[/._:-]/)[0];
    found.set(prefix, [...(found.get(prefix) || []), node]);
  }
  return [...found].filter(([, nodes]) => nodes.length > 1 && nodes.length < data.nodes.length);
}
function nodeList() {
  const line = node => h('li', {}, h('button', {class: 'link', onclick: () => go(node)}, soft(node.name)), h('span', {class: 'soft'}, ` ${node.backend || 'no model'}`),
    typeof node.seconds === 'number' ? h('span', {class: 'soft'}, ` · ${short(100 * node.seconds / spent)} % of the time`) : '');
  const grouped = groups(), inside = new Set(grouped.flatMap(([, nodes]) => nodes));
  const rest = data.nodes.filter(n => !inside.has(n));
  return [h('h3', {}, `Nodes · ${data.nodes.length}`),
    grouped.map(([prefix, nodes]) => h('details', {open: nodes.length <= 6},
      h('summary', {}, h('b', {}, soft(prefix)), ` ${plural(nodes.length, 'node')} `, h('button', {class: 'link', onclick: e => { e.preventDefault(); several(nodes, `group ${prefix}`); }}, 'show')),
      h('ul', {class: 'plain'}, nodes.map(line)))),
    rest.length ? h('ul', {class: 'plain flat'}, rest.map(line)) : null];
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
  return [h('h2', {}, soft(data.name)), h('p', {class: 'soft'}, data.summary), h('p', {class: 'soft'}, frequency ? `One step every ${short(1000 / frequency)} ms (${frequency} Hz).` : 'The bundle names no rate.'),
    h('h3', {}, `You give, each step · ${data.inputs.length}`), table(data.inputs, 'in'),
    h('h3', {}, `You receive · ${data.outputs.length}`), table(data.outputs, 'out'),
    kept.length ? [h('h3', {}, `Kept between steps · ${kept.length}`), h('ul', {class: 'plain'}, kept.map(e => h('li', {}, jump(e.from), ' → ', jump(e.to))))] : null,
    data.nodes.length > 1 ? nodeList() : null,
    timed.length ? [h('h3', {}, 'Time of one step'), h('p', {}, `${seconds(spent)} in ${plural(timed.length, 'node')}`, h('span', {class: 'soft'}, ', on the machine that wrote this page')), timed.sort((a, b) => b.seconds - a.seconds).slice(0, 8).map(n => h('p', {}, h('button', {class: 'link', onclick: () => go(n)}, soft(n.name)), ' ', share(n)))] : null,
    data.gaps.length ? [h('h3', {}, 'Missing for deployment'), h('ul', {class: 'plain warn'}, data.gaps.map(g => h('li', {}, g)))] : null,
    reported ? h('h3', {}, 'Compile report') : null,
    proven.length ? h('p', {}, failed.length ? h('span', {class: 'bad'}, `${failed.length} of ${proven.length} nodes do not reproduce the traced values: ${failed.map(n => n.name).join(', ')}`) : h('span', {class: 'good'}, `${proven.length} of ${proven.length} nodes reproduce the traced values.`)) : null,
    worst ? [h('p', {}, 'Largest at ', jump(ports.get('out' + worst[0])), ':'), differences(worst[1])] : null,
    escaped.length ? [h('p', {class: 'warn'}, `${plural(escaped.length, 'value')} left the graph and ${escaped.length > 1 ? 'are' : 'is'} frozen:`), escapes(escaped, e => e.node)] : null,
    data.glue.length ? [h('p', {class: 'warn'}, 'Changed between nodes (not part of any model):'), data.glue.map(g => h('div', {class: 'card'}, h('b', {}, soft(g.source)), ` before ${g.node} · `, h('span', {class: 'soft'}, where(g)), h('div', {class: 'mono'}, g.ops.join('\n'))))] : null,
    pruned.length ? h('p', {}, 'Pruned inputs: ', pruned.map(n => `${n.name}: ${n.pruned.join(', ')}`).join('; ')) : null,
    h('h3', {}, 'Made with'), list([...Object.entries(data.system).map(([k, v]) => [k, v === null ? null : say(v)]), ...Object.entries(data.configs).filter(([k]) => k !== 'frequency').map(([k, v]) => [k, say(v)]), ['digest', data.digest && h('code', {title: data.digest}, data.digest.slice(0, 16) + '…')]]),
    h('div', {class: 'legend-part'}, h('h3', {}, 'Legend'), h('div', {class: 'legend picture'}, [...$('legend').children].map(e => e.cloneNode(true)))),
    h('p', {class: 'soft'}, 'Keys: / find · Tab nodes · Enter open · arrows move · + − zoom · 0 fit · o overview · p panel · d dark or light · Space play · Esc back')];
}
