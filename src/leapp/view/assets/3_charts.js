// Charts: lines over time with one colour per element, bars with counts and ticks.
const WIDTH = 400;
function elementName(port, index) {
  const parts = [], all = axes(port), offset = port.dims.length - all.length;
  let rest = index;
  for (let k = port.dims.length - 1; k >= 0; k--) {
    const length = port.dims[k], i = rest % length, names = all[k - offset];
    rest = Math.floor(rest / length);
    if (Array.isArray(names) && names.length === length) parts.unshift(String(names[i]));
    else if (length > 1) parts.unshift(`[${i}]`);
  }
  return parts.join(' ') || 'value';
}
function ticks(low, high, count = 3) {
  if (!(high > low)) return [low];
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map(m => m * power).find(s => s >= raw);
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-6; v += step) found.push(Math.abs(v) < step * 1e-6 ? 0 : v);
  return found;
}
function curves(port) {
  const s = port.spark, top = 6, bottom = 84, left = 44, right = WIDTH - 8;
  let low = s.low ?? 0, high = s.high ?? 0;
  if (low === high) { low -= .5; high += .5; }
  const count = s.lines[0].length;
  const x = i => left + (right - left) * i / Math.max(count - 1, 1), y = v => bottom - (bottom - top) * (v - low) / (high - low);
  const picture = draw('svg', {viewBox: `0 0 ${WIDTH} 100`, role: 'img'});
  for (const v of ticks(low, high)) {
    picture.append(draw('line', {class: 'axis', x1: left, x2: right, y1: y(v), y2: y(v)}));
    picture.append(draw('text', {x: left - 5, y: y(v) + 3.5, 'text-anchor': 'end'}, short(v)));
  }
  const last = s.passes - 1;
  for (const at of new Set([0, Math.round(last / 2), last])) {
    picture.append(draw('text', {x: x(at / Math.max(last, 1) * (count - 1)), y: 97, 'text-anchor': at === 0 ? 'start' : at === last ? 'end' : 'middle'}, `${data.unit} ${at}`));
  }
  const names = s.picked.map(i => elementName(port, i));
  const drawn = s.lines.map((line, i) => {
    let d = '', pen = 'M';
    line.forEach((v, k) => { if (v === null) pen = 'M'; else { d += `${pen}${x(k).toFixed(1)} ${y(v).toFixed(1)}`; pen = 'L'; } });
    const path = draw('path', {d, style: `stroke: var(--c${i % 8})`});
    path.append(draw('title', {}, names[i]));
    picture.append(path);
    return path;
  });
  const now = draw('line', {class: 'now', y1: top, y2: bottom, visibility: 'hidden'});
  picture.append(now);
  const tip = h('div', {class: 'tip', hidden: true});
  const chart = h('div', {class: 'chart'}, picture, tip);
  const mark = i => { chart.classList.toggle('some', i >= 0); drawn.forEach((p, k) => p.classList.toggle('on', k === i)); };
  picture.addEventListener('pointermove', e => {
    const b = picture.getBoundingClientRect(), scale = WIDTH / b.width, px = (e.clientX - b.left) * scale, py = (e.clientY - b.top) * scale;
    const k = Math.max(0, Math.min(count - 1, Math.round((px - left) / (right - left) * (count - 1))));
    let best = -1, least = Infinity;
    s.lines.forEach((line, i) => { const far = line[k] === null ? Infinity : Math.abs(y(line[k]) - py); if (far < least) { least = far; best = i; } });
    if (best < 0) return;
    mark(best);
    tip.hidden = false;
    tip.textContent = `${names[best]}: ${short(s.lines[best][k])} at ${data.unit} ${Math.round(k * last / Math.max(count - 1, 1))}`;
    tip.style.left = `${Math.min(Math.max(x(k) / scale, 60), b.width - 60)}px`;
    tip.style.top = `${y(s.lines[best][k]) / scale}px`;
  });
  picture.addEventListener('pointerleave', () => { mark(-1); tip.hidden = true; });
  const keys = h('ul', {class: 'keys'}, names.map((name, i) => h('li', {style: `--own: var(--c${i % 8})`, onpointerenter: () => mark(i), onpointerleave: () => mark(-1)}, h('span', {}, soft(name)))));
  const what = `${plural(s.passes, data.unit)}, ${short(s.low)} to ${short(s.high)}` + (s.size > names.length ? `; the ${names.length} of ${number(s.size)} elements that vary most` : '');
  picture.setAttribute('aria-label', `${port.key} over ${what}`);
  port.now = t => { now.setAttribute('visibility', t === null ? 'hidden' : 'visible'); if (t !== null) for (const k of ['x1', 'x2']) now.setAttribute(k, x(t * (count - 1))); };
  port.now(player.time);
  return [chart, keys, h('div', {class: 'soft', style: 'font-size: 11px'}, what)];
}
// A bar chart, with a count above each bar and a tick below it. `edges` are labels at positions from 0 to 1 of the axis.
function bars(items, options = {}) {
  const top = options.counts === false ? 2 : 14, bottom = options.height || 70, w = WIDTH / Math.max(items.length, options.least || 8);
  const most = Math.max(...items.map(i => i.value), 1e-30), low = Math.min(0, ...items.map(i => i.value));
  const picture = draw('svg', {viewBox: `0 0 ${WIDTH} ${bottom + (options.ticks === false ? 2 : 14)}`, role: 'img', 'aria-label': options.label || ''});
  const high = Math.max(most, 0), f = options.root ? Math.sqrt : v => v;
  const y = v => bottom - (bottom - top) * (f(v) - f(low)) / (f(high) - f(low) || 1);
  picture.append(draw('line', {class: 'axis', x1: 0, x2: w * items.length, y1: y(0), y2: y(0)}));
  items.forEach((item, i) => {
    const at = Math.min(y(0), y(item.value)), tall = item.value ? Math.max(Math.abs(y(0) - y(item.value)), 1) : 0;
    const bar = draw('rect', {x: i * w + w * .08, width: w * .84, y: at, height: tall});
    bar.append(draw('title', {}, item.title));
    picture.append(bar);
    if (options.counts !== false && item.value) picture.append(draw('text', {x: (i + .5) * w, y: at - 3, 'text-anchor': 'middle'}, compact(item.value)));
    if (item.tick !== undefined) picture.append(draw('text', {x: (i + .5) * w, y: bottom + 11, 'text-anchor': 'middle'}, item.tick));
  });
  for (const [at, text] of options.edges || []) {
    picture.append(draw('text', {x: at * w * items.length, y: bottom + 11, 'text-anchor': at <= 0 ? 'start' : at >= 1 ? 'end' : 'middle'}, text));
  }
  return h('div', {class: 'chart'}, picture);
}
function spark(port) {
  const s = port.spark;
  if (!s) return null;
  if (s.lines) return curves(port);
  const items = s.bars.map((v, i) => ({value: v ?? 0, title: `${elementName(port, i)}: ${short(v)}`}));
  const note = `one ${data.unit}, ${s.bars.length < s.size ? `the first ${s.bars.length} of ${number(s.size)}` : plural(s.size, 'element')}, ${short(s.low)} to ${short(s.high)}`;
  return [bars(items, {counts: false, ticks: false, height: 44, label: `${port.key}: ${note}`}), h('div', {class: 'soft', style: 'font-size: 11px'}, note)];
}
// A histogram of the differences between exported and traced values, by powers of ten.
function differences(v) {
  if (!v) return null;
  const tens = Object.keys(v.bins || {}).map(Number).sort((a, b) => a - b);
  const items = [{value: v.exact || 0, tick: 'equal', title: `${number(v.exact || 0)} values equal`}];
  if (tens.length) for (let e = tens[0]; e <= tens[tens.length - 1]; e++) {
    items.push({value: v.bins[e] || 0, tick: `1e${e}`, title: `${number(v.bins[e] || 0)} values differ by 1e${e} to 1e${e + 1}`});
  }
  return h('div', {}, h('p', {}, `largest difference ${short(v.largest)}`, h('span', {class: 'soft'}, ` from the traced values, over ${number(v.count)} values`)),
    bars(items, {root: true, label: `differences from the traced values: ${items.map(i => i.title).join(', ')}`}));
}
// A small histogram of the values of a weight.
function spread(w) {
  if (!w.bins) return null;
  const step = (w.high - w.low) / w.bins.length;
  const items = w.bins.map((n, i) => ({value: n, title: `${number(n)} from ${short(w.low + i * step)} to ${short(w.low + (i + 1) * step)}`}));
  const edges = [[0, short(w.low)], [1, short(w.high)]];
  if (w.low < 0 && w.high > 0 && -w.low / (w.high - w.low) > .2 && -w.low / (w.high - w.low) < .8) edges.push([-w.low / (w.high - w.low), '0']);
  return bars(items, {counts: false, height: 44, least: 1, edges, label: `values from ${short(w.low)} to ${short(w.high)}, most often ${number(Math.max(...w.bins))} in one of ${w.bins.length} parts`});
}
