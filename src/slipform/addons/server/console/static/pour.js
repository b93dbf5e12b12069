// One answer being poured: which characters of it were released, held back, discarded, and where it became impossible.
import { count, h, icon, replace } from './dom.js';

/** The recorded pieces of a call as states in time: for each moment, the text so far and what had become of it. */
export function states(pour) {
  const found = [];
  for (const piece of pour) grow(found, piece);
  return found;
}

/** One more piece: milliseconds, attempt, what was received, what was sent, how much is held back. */
export function grow(list, [at, attempt, piece, released, held]) {
  const last = list[list.length - 1];
  const same = last?.attempt === attempt;
  const state = { at, attempt, received: (same ? last.received : '') + piece, sent: (same ? last.sent : '') + released, total: (last ? last.total : '') + released, held };
  list.push(state);
  return state;
}

/** Where the browser counts a character that the server counts as the nth: some are two to it. */
export const unitsBefore = (text, at) => (/[\ud800-\udfff]/.test(text) ? [...text].slice(0, at).join('').length : at);

/** Every character of a text with its fate. Released characters are found again in their order; blanks are discarded. */
export function fates(state, fault) {
  const { received, sent } = state;
  // Answers after the first are read whole: they leave, mended, when they have been judged.
  if (state.attempt > 1) return new Array(received.length).fill(sent ? 'released' : 'held');
  const kinds = new Array(received.length).fill('dropped');
  let next = 0;
  for (let at = 0; at < received.length && next < sent.length; at += 1) {
    if (received[at] === sent[next]) { kinds[at] = 'released'; next += 1; }
  }
  // Held back is what stands at the end and may still leave; what comes after a fault was not looked at.
  let held = state.held;
  for (let at = (fault ?? received.length) - 1; at >= 0 && held > 0 && kinds[at] !== 'released'; at -= 1) {
    if (!' \n\t\r'.includes(received[at])) { kinds[at] = 'held'; held -= 1; }
  }
  if (fault !== undefined && fault !== null && fault < received.length) kinds[fault] = 'fault';
  return kinds;
}

export function runs(text, kinds) {
  const found = [];
  let from = 0;
  for (let at = 1; at <= text.length; at += 1) {
    if (at === text.length || kinds[at] !== kinds[from]) { found.push({ kind: kinds[from], at: from, length: at - from }); from = at; }
  }
  return text.length ? found : [];
}

export const legend = () => h('div.legend', [['released', 'r', 'has left'], ['held', 'h', 'may still leave'], ['discarded', 'd', 'prose, fences, blanks'], ['fault', 'f', 'no valid answer begins like this']]
  .map(([name, look, meaning]) => h('span', { title: meaning }, h('i', { class: look }), name)));

const WIDE = 1200;
const HIGH = 22;
const LARGEST = 64 * 1024;

function stripes(colour) {
  const cell = document.createElement('canvas');
  cell.width = cell.height = 8;
  const context = cell.getContext('2d');
  context.strokeStyle = colour;
  context.lineWidth = 3;
  for (const from of [-8, 0, 8]) { context.beginPath(); context.moveTo(from, 8); context.lineTo(from + 8, 0); context.stroke(); }
  return context.createPattern(cell, 'repeat');
}

/** A strip with one stretch per run: solid for released, striped for held, thin for discarded, a line for the fault. */
function strip(found, size, words) {
  const canvas = h('canvas.ribbon', { role: 'img', 'aria-label': words, width: WIDE, height: HIGH });
  const style = getComputedStyle(document.documentElement);
  const context = canvas.getContext('2d');
  const scale = WIDE / Math.max(1, size);
  for (const run of found) {
    const colour = style.getPropertyValue(`--${run.kind}`);
    context.fillStyle = run.kind === 'held' ? stripes(colour) : colour;
    const [top, high] = run.kind === 'dropped' ? [8, 6] : [0, HIGH];
    context.fillRect(run.at * scale, top, Math.max(run.kind === 'fault' ? 5 : 1, run.length * scale), high);
  }
  return canvas;
}

const told = (totals, size, unit) => `${count(totals.released)} released, ${count(totals.held)} held, ${count(totals.dropped)} discarded${totals.fault ? ', stopped at a fault' : ''}, of ${count(size)} ${unit}`;

const piece = (kind, text) => h('span', { class: kind === 'dropped' && !text.trim() ? 'dropped blank' : kind }, text);

/** The ribbon (with its words beside it) and the coloured text of one state. */
export function ribbon(state, fault, writing = false) {
  const found = runs(state.received, fates(state, fault));
  const totals = { released: 0, held: 0, dropped: 0, fault: 0 };
  for (const run of found) totals[run.kind] += run.length;
  const size = state.received.length;
  const words = told(totals, size, 'characters');
  const text = size > LARGEST && writing ? h('p.muted', 'Too long to show while it grows.')
    : h('pre.pour', { tabindex: '0', 'aria-label': 'What the model wrote' }, found.filter((run) => run.at < LARGEST).map((run) => piece(run.kind, state.received.slice(run.at, Math.min(run.at + run.length, LARGEST)))), size > LARGEST ? ' …' : null, writing ? h('span.cursor') : null);
  const mended = state.attempt > 1 && state.sent ? [h('p.label.after', 'sent after validation:'), h('pre.pour', { tabindex: '0', 'aria-label': 'What was sent' }, state.sent.slice(0, LARGEST))] : null;
  return [strip(found, size, words), h('p.label.totals', { 'data-in': size, 'data-released': totals.released, 'data-held': totals.held, 'data-dropped': totals.dropped + totals.fault }, words), text, mended];
}

/** The ribbon where only numbers are known: of calls whose words were not kept. */
export function countsRibbon(figures, unit = 'characters') {
  const dropped = figures.dropped ?? Math.max(0, figures.received - figures.released - figures.held);
  const found = [{ kind: 'dropped', at: 0, length: dropped }, { kind: 'released', at: dropped, length: figures.released }, { kind: 'held', at: dropped + figures.released, length: figures.held }].filter((run) => run.length > 0);
  if (figures.fault) found.push({ kind: 'fault', at: Math.min(figures.fault.at, figures.received - 1), length: 1 });
  const totals = { ...figures, dropped, fault: figures.fault ? 1 : 0 };
  const words = told(totals, figures.received, unit);
  return [strip(found, figures.received, words), h('p.label.totals', { 'data-in': figures.received, 'data-released': figures.released, 'data-held': figures.held, 'data-dropped': dropped }, words)];
}

/** A player over recorded states: any position shows what a replay to it would show. */
export function player(list, show) {
  let position = list.length - 1;
  let timer = 0;
  let speed = 1;
  const slider = h('input', { type: 'range', min: '0', max: String(Math.max(0, list.length - 1)), value: String(position), 'aria-label': 'Position in the recording' });
  const label = h('span.label.mono');
  const end = list[list.length - 1].at;
  const go = (to) => {
    position = Math.max(0, Math.min(list.length - 1, to));
    slider.value = String(position);
    replace(label, `${(list[position].at / 1000).toFixed(2)} / ${(end / 1000).toFixed(2)} s · ${position + 1}/${list.length}`);
    show(list[position], position);
  };
  const stop = () => { clearTimeout(timer); timer = 0; replace(button, icon('play')); button.setAttribute('aria-label', 'Replay'); };
  const step = () => {
    if (position >= list.length - 1) { stop(); return; }
    const wait = (list[position + 1].at - list[position].at) / speed;
    timer = setTimeout(() => { go(position + 1); step(); }, Math.min(wait, 2000));
  };
  const start = () => {
    if (timer) { stop(); return; }
    if (position >= list.length - 1) go(0);
    replace(button, icon('pause'));
    button.setAttribute('aria-label', 'Pause');
    step();
  };
  const button = h('button.main.round', { 'aria-label': 'Replay', onclick: start }, icon('play'));
  const paces = [['1', '1×'], ['4', '4×']].map(([value, name]) => h('button', { 'aria-pressed': String(value === '1'), onclick: (event) => { speed = Number(value); for (const each of paces) each.setAttribute('aria-pressed', String(each === event.currentTarget)); } }, name));
  const instant = h('button', { title: 'To the end', 'aria-label': 'To the end', onclick: () => { stop(); go(list.length - 1); } }, icon('end'));
  slider.addEventListener('input', () => { stop(); go(Number(slider.value)); });
  const node = h('div.card.player', { role: 'group', 'aria-label': 'Replay' }, button, slider, label, h('div.seg', { role: 'group', 'aria-label': 'Speed' }, paces, instant));
  go(position);
  return { node, toggle: start, by: (steps) => { stop(); go(position + steps); }, stop };
}
