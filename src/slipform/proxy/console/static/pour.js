// One answer being poured: which bytes of it were released, held back, thrown away, and where it became impossible.
import { h, replace, visible } from './dom.js';

/** The recorded pieces of a call as states in time: for each moment, the text so far and what had become of it. */
export function states(pour, attempts) {
  const found = [];
  let attempt = 0;
  let received = '';
  let sent = '';
  let total = '';
  for (const [at, number, piece, released, held] of pour) {
    if (number !== attempt) { attempt = number; received = ''; sent = ''; }
    received += piece;
    sent += released;
    total += released;
    found.push({ at, attempt, received, sent, total, held, outcome: (attempts[attempt - 1] || {}).outcome });
  }
  return found;
}

/** Every character of a text with its fate. Released characters are found again in their order; blanks are thrown away. */
export function fates(state, fault) {
  const { received, sent } = state;
  // Answers after the first are read whole: they leave, mended, when they have been judged.
  if (state.attempt > 1) return new Array(received.length).fill(sent ? 'released' : 'held');
  const kinds = new Array(received.length).fill('dropped');
  let next = 0;
  for (let at = 0; at < received.length && next < sent.length; at += 1) {
    if (received[at] === sent[next]) { kinds[at] = 'released'; next += 1; }
  }
  // Held back is what stands at the end and may still leave.
  let held = state.held;
  for (let at = received.length - 1; at >= 0 && held > 0 && kinds[at] !== 'released'; at -= 1) { kinds[at] = 'held'; held -= 1; }
  if (fault !== undefined && fault !== null && fault < received.length) kinds[fault] = 'fault';
  return kinds;
}

export function runs(text, kinds) {
  const found = [];
  for (let at = 0; at < text.length; at += 1) {
    const last = found[found.length - 1];
    if (last && last.kind === kinds[at]) last.text += text[at];
    else found.push({ kind: kinds[at], text: text[at], at });
  }
  return found;
}

export const legend = () => h('div', { class: 'legend' }, ['released r', 'held h', 'thrown-away d', 'fault f'].map((each) => {
  const [name, look] = each.split(' ');
  return h('span', {}, h('i', { class: look }), name.replace('-', ' '));
}));

const COLOURS = { released: '--released', held: '--held', dropped: '--dropped', fault: '--bad' };
const LARGEST = 256 * 1024;

/** The ribbon (a canvas with its words beside it) and the coloured text of one state. */
export function ribbon(state, fault) {
  const kinds = fates(state, fault);
  const found = runs(state.received, kinds);
  const totals = { released: 0, held: 0, dropped: 0, fault: 0 };
  for (const run of found) totals[run.kind] += run.text.length;
  const words = `${totals.released} released, ${totals.held} held, ${totals.dropped} thrown away${totals.fault ? ', stopped at a fault' : ''}, of ${state.received.length} characters`;
  const canvas = h('canvas', { class: 'ribbon', role: 'img', 'aria-label': words, width: '900', height: '18' });
  const style = getComputedStyle(document.documentElement);
  const context = canvas.getContext('2d');
  const width = 900 / Math.max(1, state.received.length);
  for (const run of found) {
    context.fillStyle = style.getPropertyValue(COLOURS[run.kind]);
    context.fillRect(run.at * width, run.kind === 'dropped' ? 6 : run.kind === 'held' ? 3 : 0, Math.max(run.kind === 'fault' ? 3 : 0.5, run.text.length * width), run.kind === 'dropped' ? 6 : run.kind === 'held' ? 12 : 18);
  }
  const text = state.received.length > LARGEST ? h('p', { class: 'muted' }, 'Too long to show; export has it whole.')
    : h('pre', { class: 'pour', tabindex: '0', 'aria-label': 'What the model wrote' }, found.map((run) => h('span', { class: run.kind }, visible(run.text))));
  const mended = state.attempt > 1 && state.sent ? h('p', {}, h('span', { class: 'label' }, 'sent once it was judged: '), h('code', {}, visible(state.sent))) : null;
  return [canvas, h('p', { class: 'label totals', 'data-in': state.received.length, 'data-released': totals.released, 'data-held': totals.held, 'data-dropped': totals.dropped + totals.fault }, words), text, mended];
}

/** A player over recorded states: any position shows what a replay to it would show. */
export function player(list, show) {
  let position = list.length - 1;
  let timer = 0;
  let speed = 1;
  const slider = h('input', { type: 'range', min: '0', max: String(Math.max(0, list.length - 1)), value: String(position), 'aria-label': 'Position in the recording' });
  const label = h('span', { class: 'label' });
  const go = (to) => {
    position = Math.max(0, Math.min(list.length - 1, to));
    slider.value = String(position);
    replace(label, `${position + 1} of ${list.length} · ${(list[position].at / 1000).toFixed(2)} s`);
    show(list[position]);
  };
  const stop = () => { clearTimeout(timer); timer = 0; replace(button, '▶ replay'); };
  const step = () => {
    if (position >= list.length - 1) { stop(); return; }
    const wait = (list[position + 1].at - list[position].at) / speed;
    timer = setTimeout(() => { go(position + 1); step(); }, Math.min(wait, 2000));
  };
  const start = () => {
    if (timer) { stop(); return; }
    if (position >= list.length - 1) go(0);
    replace(button, '❚❚ pause');
    step();
  };
  const button = h('button', { onclick: start }, '▶ replay');
  const pace = h('select', { 'aria-label': 'Speed', onchange: (event) => { speed = Number(event.target.value); } }, ['1', '4', '16'].map((each) => h('option', { value: each }, `${each}×`)));
  slider.addEventListener('input', () => { stop(); go(Number(slider.value)); });
  const node = h('div', { class: 'player' }, button, slider, label, pace);
  go(position);
  return { node, toggle: start, by: (count) => { stop(); go(position + count); }, stop };
}
