// Search: finds nodes and ports whose names, kinds, units or element names contain every word.
const search = $('search'), hits = $('hits'), places = [];
for (const node of data.nodes) {
  places.push({label: node.name, note: `node · ${node.backend || 'no model'}`, text: [node.name, node.backend, node.file].join(' '), go: () => go(node)});
  for (const [port, side] of node.ports) {
    const names = port.element_names ? port.element_names.flat(2).join(' ') : '';
    places.push({label: port.key, note: [side === 'in' ? 'input' : 'output', form(port), port.kind, port.units && say(port.units)].filter(Boolean).join(' · '),
      text: [port.key, port.kind, port.units && say(port.units), port.dtype, names].join(' '), go: () => go(node, port)});
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
  hits.replaceChildren(...found.map((p, i) => h('li', {role: 'option', id: `hit${i}`, onpointerdown: e => { e.preventDefault(); take(i); }}, soft(p.label), h('small', {}, p.note))));
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
function take(i) { if (found[i]) { hits.hidden = true; search.setAttribute('aria-expanded', 'false'); found[i].go(); } }
search.addEventListener('input', look);
search.addEventListener('focus', () => { if (search.value) look(); });
search.addEventListener('blur', () => { hits.hidden = true; });
search.addEventListener('keydown', e => {
  if (e.key === 'ArrowDown' || e.key === 'ArrowUp') { e.preventDefault(); if (found.length) { chosen = (chosen + (e.key === 'ArrowDown' ? 1 : found.length - 1)) % found.length; mark(); } }
  else if (e.key === 'Enter') take(chosen);
  else if (e.key === 'Escape') { search.value = ''; look(); graph.focus(); e.stopPropagation(); }
});

// Dark or light: the setting of the system, until the reader chooses.
const system = matchMedia('(prefers-color-scheme: dark)');
let theme = stored('leapp-theme');
const paint = () => { document.documentElement.dataset.theme = theme || (system.matches ? 'dark' : 'light'); };
function toggleTheme() {
  theme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  stored('leapp-theme', theme);
  paint();
}
system.addEventListener('change', paint);

const openOverview = () => { if (location.hash) location.hash = ''; overview(true); };
const keys = {'+': () => zoom(.8), '=': () => zoom(.8), '-': () => zoom(1.25), '0': fit, o: openOverview, d: toggleTheme, p: toggleFold, Escape: home,
  '/': () => { search.focus(); search.select(); }, ' ': togglePlay,
  ArrowLeft: () => move(-.1, 0), ArrowRight: () => move(.1, 0), ArrowUp: () => move(0, -.1), ArrowDown: () => move(0, .1)};
addEventListener('keydown', e => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target === search) return;
  // Arrows and Space belong to the slider, the panel or a button while it has the focus.
  if ((e.key.startsWith('Arrow') || e.key === ' ') && (panel.contains(e.target) || e.target.matches('input, button, summary'))) return;
  if (keys[e.key]) { e.preventDefault(); keys[e.key](); }
});
$('in').onclick = () => zoom(.8);
$('out').onclick = () => zoom(1.25);
$('fit').onclick = fit;
$('theme').onclick = toggleTheme;
$('overview').onclick = openOverview;
$('fold').onclick = toggleFold;

$('summary').textContent = $('summary').title = data.summary;
svg.removeAttribute('width');
svg.removeAttribute('height');
paint();
fold(narrow() || stored('leapp-panel') === 'folded');
choose();
show(around(all, 1.25));
arrive();
