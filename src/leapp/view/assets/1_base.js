// Makes HTML and SVG elements, and writes numbers and names as text.
const data = JSON.parse(document.getElementById('data').textContent);
const $ = id => document.getElementById(id);
const SVG = 'http://www.w3.org/2000/svg';

// Text is added as text nodes, so a name from a bundle cannot become markup.
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
function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
// The text with places where a line may break: after _ / . and :
const soft = text => String(text).split(/(?<=[_/.:])/).flatMap((part, i) => i ? [h('wbr'), part] : [part]);
const number = n => typeof n === 'number' ? n.toLocaleString('en') : String(n);
const short = n => typeof n !== 'number' ? String(n ?? '–') : n && (Math.abs(n) < 1e-3 || Math.abs(n) >= 1e6) ? n.toExponential(1) : String(Number(n.toPrecision(3)));
const compact = n => n < 10000 ? String(n) : n < 1e6 ? `${short(n / 1e3)}k` : `${short(n / 1e6)}M`;
const size = bytes => bytes < 1024 ? `${bytes} B` : bytes < 1048576 ? `${short(bytes / 1024)} KiB` : `${short(bytes / 1048576)} MiB`;
const say = v => typeof v === 'string' ? v : v === null ? 'null' : Array.isArray(v) ? v.map(say).join(', ') : typeof v === 'object' ? JSON.stringify(v) : String(v);
const plural = (n, word) => `${number(n)} ${word}${n === 1 ? '' : 's'}`;
const form = port => `[${port.dims.join(', ')}] ${port.dtype}`;
const seconds = s => s < 1e-3 ? `${short(s * 1e6)} µs` : s < 1 ? `${short(s * 1e3)} ms` : `${short(s)} s`;
function stored(name, value) {
  try { return value === undefined ? localStorage.getItem(name) : localStorage.setItem(name, value); } catch { return null; /* browsers may refuse storage to a page that is a local file */ }
}
