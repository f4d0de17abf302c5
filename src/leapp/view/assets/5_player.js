// Plays recorded values: each port shows its elements as small bars at the time of the slider.
const player = {time: null, timer: 0};
const played = [...ports.values()].filter(p => p.spark?.lines);
const frames = Math.max(0, ...played.map(p => p.spark.lines[0].length)), passes = Math.max(0, ...played.map(p => p.spark.passes));
const slider = $('time'), clock = $('clock');
function seek(index) {
  player.time = frames > 1 ? index / (frames - 1) : 0;
  slider.value = index;
  const step = Math.round(player.time * (passes - 1)), rate = data.configs.frequency;
  clock.textContent = `${data.unit} ${step} of ${passes}` + (rate && data.unit === 'step' ? `, ${short(step / rate)} s` : '');
  slider.setAttribute('aria-valuetext', clock.textContent);
  document.body.classList.add('playing');
  for (const port of played) { gauge(port, index); port.now?.(player.time); }
}
function gauge(port, index) {
  const s = port.spark;
  if (!port.gauge) {
    const text = port.shape.querySelectorAll('text')[1] || port.shape.querySelector('text'), b = text.getBBox();
    text.classList.add('detail');
    port.shape.classList.add('shown-live');
    const width = Math.max(b.width, 60), x = port.side === 'out' ? b.x + b.width - width : b.x;
    port.gauge = draw('g', {class: 'gauge'});
    port.gauge.append(draw('rect', {class: 'live', x, y: b.y, width, height: b.height, rx: 2}), draw('title', {}));
    const low = Math.min(s.low, 0), high = Math.max(s.high, 0), y = v => b.y + 1 + (b.height - 2) * (1 - (v - low) / (high - low || 1));
    const w = (width - 4) / s.lines.length;
    port.bars = s.lines.map((_, i) => { const bar = draw('rect', {x: x + 2 + i * w + w * .1, width: w * .8, style: `fill: var(--c${i % 8})`}); port.gauge.append(bar); return bar; });
    port.gauge.append(draw('line', {class: 'zero', x1: x, x2: x + width, y1: y(0), y2: y(0)}));
    port.level = y;
    port.shape.insertBefore(port.gauge, port.shape.querySelector('.ring'));
  }
  const said = [];
  s.lines.forEach((line, i) => {
    const v = line[Math.min(index, line.length - 1)], y = port.level;
    said.push(`${elementName(port, s.picked[i])} ${short(v)}`);
    const top = Math.min(y(0), y(v ?? 0));
    port.bars[i].setAttribute('y', top);
    port.bars[i].setAttribute('height', v === null ? 0 : Math.max(Math.abs(y(0) - y(v)), .6));
  });
  port.gauge.querySelector('title').textContent = said.join('\n');
}
function stopPlaying() { clearInterval(player.timer); player.timer = 0; $('play').textContent = '▶'; $('play').setAttribute('aria-label', 'Play'); }
function togglePlay() {
  if (frames < 2) return;
  if (player.timer) return stopPlaying();
  const every = Math.max(40, Math.min(400, 6000 / frames));
  $('play').textContent = '⏸';
  $('play').setAttribute('aria-label', 'Pause');
  if (player.time === null || player.time === 1) seek(0);
  player.timer = setInterval(() => { const next = Number(slider.value) + 1; if (next < frames) seek(next); else stopPlaying(); }, every);
}
function hideValues() {
  stopPlaying();
  player.time = null;
  document.body.classList.remove('playing');
  clock.textContent = `${plural(passes, data.unit)} recorded`;
  for (const port of played) { port.gauge?.remove(); port.gauge = null; port.shape.classList.remove('shown-live'); port.now?.(null); }
}
if (frames > 1) {
  $('player').hidden = false;
  slider.max = frames - 1;
  hideValues();
  slider.addEventListener('input', () => { stopPlaying(); seek(Number(slider.value)); });
  $('play').onclick = togglePlay;
  $('stop').onclick = hideValues;
}
