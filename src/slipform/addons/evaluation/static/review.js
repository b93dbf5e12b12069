// Review answers: the least sure rows first, every value beside its source, decisions by key, and what was decided as a dataset.
import { count, download, h, replace } from './dom.js';
import { isContainer, leavesOf, parseJson, typed, withoutValue, withValue } from './review_values.js';
import { doubt, evidenceOf, rowView } from './review_row.js';

const HEIGHT = 46;
const SPARE = 6;
const KEYS = [['a', 'accept the value, go to the next'], ['e', 'correct the value'], ['t', 'take the text selected in the source as the value'], ['x', 'not there: null, or the item removed'],
  ['u', 'undo the decision'], ['A', 'accept what is left of the row, go to the next row'], ['E', 'correct the whole row as JSON'], ['j k ↓ ↑', 'next, previous value'], ['n p', 'next, previous row'],
  ['/', 'search rows'], ['d', 'download what was decided'], ['?', 'this help']];

const about = parseJson(document.getElementById('about').textContent);
const lines = document.getElementById('rows').textContent.split('\n');
// [row, key, title, lowest score or null, values not in the source, values]
const index = parseJson(document.getElementById('index').textContent).map(([row, key, title, lowest, absent, values], at) => ({ at, row, key, title, lowest, absent, values }));
const storage = `slipform-review-${about.digest}`;
let decided = {}; // by the row's place in the file: {value?, marks}
try { decided = JSON.parse(localStorage.getItem(storage) || '{}', (key, value) => value); } catch { decided = {}; }

let order = [];
let chosen = null;
let current = null;
let selected = null;
let editing = null;
let saving = 0;

const marksOf = (at) => (decided[at] ? decided[at].marks : {});
const marked = (at) => Object.keys(marksOf(at)).length;
const isDone = (entry) => marked(entry.at) >= (decided[entry.at] && decided[entry.at].values !== undefined ? decided[entry.at].values : entry.values);

const view = rowView({ select, accept, edit, correct });
const inner = h('div', { class: 'inner' });
const list = h('div', { class: 'list rows', tabindex: '0', role: 'region', 'aria-label': 'Rows' }, inner);
const search = h('input', { type: 'search', id: 'search', placeholder: 'key or words', 'aria-label': 'Search rows', class: 'grow' });
const filter = h('select', { 'aria-label': 'Which rows' }, [['all', 'all rows'], ['open', 'not decided'], ['low', 'score under 0.5'], ['absent', 'not in the source'], ['done', 'decided']].map(([value, text]) => h('option', { value }, text)));
const sorting = h('select', { 'aria-label': 'Order' }, [['doubt', 'lowest confidence first'], ['absent', 'most not in the source'], ['input', 'as in the input']].map(([value, text]) => h('option', { value }, text)));
const progress = h('span', { class: 'label', role: 'status' });
const exporting = h('button', { class: 'main', onclick: save }, 'download');
const title = h('h2', {});
const said = h('p', { class: 'told', role: 'alert' });
const help = h('dialog', { 'aria-label': 'Keys' }, h('h2', {}, 'Keys'), h('dl', { class: 'keys' }, KEYS.map(([key, what]) => [h('dt', {}, h('kbd', {}, key)), h('dd', {}, what)])), h('button', { onclick: () => help.close() }, 'close'));
const whole = h('dialog', { class: 'whole', 'aria-label': 'The row as JSON' });

function keep() {
  clearTimeout(saving);
  saving = setTimeout(() => { try { localStorage.setItem(storage, JSON.stringify(decided)); } catch { /* no storage here: the download is what counts */ } }, 300);
}

// -- the list of rows ------------------------------------------------------------------------------------

function arrange() {
  const words = search.value.toLowerCase();
  const wanted = { all: () => true, open: (each) => !isDone(each), low: (each) => each.lowest !== null && each.lowest < 0.5, absent: (each) => each.absent > 0, done: isDone }[filter.value];
  order = index.filter((each) => wanted(each) && (!words || `${each.key} ${each.title}`.toLowerCase().includes(words)));
  if (sorting.value === 'input') order.sort((a, b) => a.at - b.at);
  if (sorting.value === 'absent') order.sort((a, b) => b.absent - a.absent || a.at - b.at);
  const doubtOf = (each) => each.lowest ?? (each.absent ? 0 : 1);
  if (sorting.value === 'doubt') order.sort((a, b) => doubtOf(a) - doubtOf(b) || b.absent - a.absent || a.at - b.at);
  list.scrollTop = 0;
  drawList();
}

function drawList() {
  inner.style.height = `${order.length * HEIGHT}px`;
  const first = Math.max(0, Math.floor(list.scrollTop / HEIGHT) - SPARE);
  const last = Math.min(order.length, first + Math.ceil(list.clientHeight / HEIGHT) + 2 * SPARE);
  const shown = order.slice(first, last).map((entry, offset) => {
    const look = entry.lowest === null ? 'muted' : entry.lowest < 0.5 ? 'bad' : entry.lowest < 0.8 ? 'warn' : 'good';
    const done = isDone(entry);
    const node = h('button', { class: `entry${done ? ' done' : ''}`, 'data-at': entry.at, ...(chosen === entry ? { 'aria-current': 'true' } : {}), onclick: () => open(entry) },
      h('span', { class: 'name' }, done ? '✓ ' : '', entry.title || entry.key), h('span', { class: `lowest ${look}` }, entry.lowest === null ? '' : entry.lowest.toFixed(2)),
      h('span', { class: 'muted small' }, `row ${entry.row}`, entry.absent ? `, ${entry.absent} not in the source` : ''), h('span', { class: 'muted small' }, marked(entry.at) ? `${marked(entry.at)}/${entry.values}` : ''));
    node.style.top = `${(first + offset) * HEIGHT}px`;
    return node;
  });
  const wasHere = inner.contains(document.activeElement);
  replace(inner, shown.length ? shown : h('p', { class: 'muted pad' }, 'No row is like that.'));
  if (wasHere) (inner.querySelector('[aria-current]') || list).focus({ preventScroll: true });
}

function tell() {
  const done = index.filter(isDone).length;
  const corrected = Object.values(decided).filter((each) => Object.values(each.marks).includes('corrected')).length;
  replace(progress, `${count(done)} of ${count(index.length)} rows decided${corrected ? `, ${count(corrected)} corrected` : ''}`);
  replace(exporting, `download ${count(done)}`);
  exporting.disabled = done === 0;
}

// -- one row ---------------------------------------------------------------------------------------------

function open(entry) {
  chosen = entry;
  const row = parseJson(lines[entry.at]);
  current = { row, value: decided[entry.at] && decided[entry.at].value !== undefined ? parseJson(decided[entry.at].value) : row.value };
  lookUp();
  editing = null;
  selected = next(null);
  const at = order.indexOf(entry);
  if (at >= 0 && (at * HEIGHT < list.scrollTop || (at + 1) * HEIGHT > list.scrollTop + list.clientHeight)) list.scrollTop = Math.max(0, at * HEIGHT - list.clientHeight / 3);
  draw();
}

function draw() {
  replace(title, `Row ${chosen.row}`, chosen.key === String(chosen.row) ? '' : ` · ${chosen.key}`);
  replace(said);
  const wasHere = document.activeElement === document.body || view.tree.contains(document.activeElement);
  view.draw({ ...current, marks: marksOf(chosen.at), selected, editing });
  drawList();
  tell();
  const there = view.tree.querySelector('.choose[aria-current]');
  if (wasHere && editing === null && there) there.focus({ preventScroll: true }); // the nodes are new: who was here stays here
}

/** The value that most needs a look among those without a decision; the first of the row when all have one. */
function next(after) {
  const open = leavesOf(current.value).filter((leaf) => !marksOf(chosen.at)[leaf.pointer] && leaf.pointer !== after);
  const found = (leaf) => doubt(current.evidence.get(leaf.pointer) || { spans: [], confidence: null }, leaf.value);
  if (open.length) return open.reduce((best, leaf) => (found(leaf) < found(best) ? leaf : best)).pointer;
  return after === null ? leavesOf(current.value)[0].pointer : null;
}

function select(pointer) { selected = pointer; draw(); }
function edit(pointer) { editing = pointer; if (pointer !== null) selected = pointer; draw(); }

function decide(pointer, mark, value) {
  const before = decided[chosen.at] || { marks: {} };
  const isNew = value !== undefined;
  if (isNew) current.value = value;
  const leaves = leavesOf(current.value);
  const known = new Set(leaves.map((leaf) => leaf.pointer));
  const marks = Object.fromEntries(Object.entries({ ...before.marks, ...(pointer === null ? {} : { [pointer]: mark }) }).filter(([each, what]) => known.has(each) && what));
  decided[chosen.at] = { ...before, marks, values: leaves.length, ...(isNew ? { value: JSON.stringify(value) } : {}) };
  if (!Object.keys(marks).length && decided[chosen.at].value === undefined) delete decided[chosen.at];
  keep();
}

function onward(pointer) {
  const to = next(pointer);
  if (to === null) step(1, true);
  else select(to);
}

function accept(pointer) {
  decide(pointer, marksOf(chosen.at)[pointer] === 'corrected' ? 'corrected' : 'accepted');
  editing = null;
  onward(pointer);
}

function correct(leaf, value, span) {
  decide(leaf.pointer, 'corrected', withValue(current.value, leaf.steps, value));
  lookUp();
  if (span) current.evidence.set(leaf.pointer, { spans: [{ ...span, how: 'exact' }], confidence: null });
  editing = null;
  if (isContainer(value)) draw();
  else onward(leaf.pointer);
}

/** What is known of the values as they are now: corrected ones have no score any more. */
function lookUp() {
  current.evidence = evidenceOf(current.row);
  for (const leaf of leavesOf(current.value)) if (marksOf(chosen.at)[leaf.pointer] === 'corrected') current.evidence.set(leaf.pointer, { spans: literally(leaf.value), confidence: null });
}

/** Where a corrected value stands to the letter. */
function literally(value) {
  const words = typeof value === 'string' ? value : JSON.stringify(value);
  const spans = [];
  for (let at = words.length > 1 ? current.row.source.indexOf(words) : -1; at >= 0 && spans.length < 20; at = current.row.source.indexOf(words, at + 1)) spans.push({ start: at, end: at + words.length, how: 'exact' });
  return spans.map((span) => ({ ...span, ambiguous: spans.length > 1 }));
}

function remove(leaf) {
  const shorter = withoutValue(current.value, leaf.steps);
  const isGone = leavesOf(shorter).length < leavesOf(current.value).length;
  if (!isGone) { correct(leaf, null); return; }
  decided[chosen.at] = { marks: {} }; // what follows it in the list has other places now
  decide(null, null, shorter);
  for (const each of leavesOf(shorter)) decide(each.pointer, 'corrected');
  lookUp();
  selected = next(null);
  draw();
}

function undo() {
  if (!decided[chosen.at]) return;
  delete decided[chosen.at].marks[selected];
  const original = parseJson(lines[chosen.at]).value;
  const was = leavesOf(original).find((leaf) => leaf.pointer === selected);
  if (was && decided[chosen.at].value !== undefined && leavesOf(current.value).some((leaf) => leaf.pointer === selected)) decide(null, null, withValue(current.value, was.steps, was.value));
  lookUp();
  keep();
  draw();
}

function acceptRow() {
  for (const leaf of leavesOf(current.value)) if (!marksOf(chosen.at)[leaf.pointer]) decide(leaf.pointer, 'accepted');
  step(1, true);
}

function editRow() {
  const box = h('textarea', { value: JSON.stringify(current.value, null, 2), 'aria-label': 'The whole answer', spellcheck: 'false' });
  const wrong = h('p', { class: 'bad', role: 'alert' });
  const store = () => {
    try {
      const value = parseJson(box.value);
      decided[chosen.at] = { marks: {} };
      decide(null, null, value);
      for (const leaf of leavesOf(value)) decide(leaf.pointer, 'corrected');
      lookUp();
      whole.close();
      selected = next(null);
      draw();
    } catch (error) { replace(wrong, error.message); }
  };
  replace(whole, h('h2', {}, `Row ${chosen.row} as JSON`), box, wrong, h('div', { class: 'row-tools' }, h('button', { class: 'main', onclick: store }, 'save'), h('button', { onclick: () => whole.close() }, 'cancel')));
  whole.showModal();
}

function step(by, isOpenOnly = false) {
  let at = order.indexOf(chosen) + by;
  while (isOpenOnly && at < order.length && isDone(order[at])) at += by;
  if (at >= 0 && at < order.length) open(order[at]);
  else { draw(); if (isOpenOnly) replace(said, 'That was the last one. Download what was decided (d).'); }
}

function move(by) {
  const leaves = leavesOf(current.value);
  const at = leaves.findIndex((leaf) => leaf.pointer === selected);
  select(leaves[Math.min(leaves.length - 1, Math.max(0, at + by))].pointer);
}

function take() {
  const picked = view.picked();
  const leaf = leavesOf(current.value).find((each) => each.pointer === selected);
  if (!picked || !leaf) { replace(said, 'Select the text in the source first.'); return; }
  try { correct(leaf, typed(picked.text, leaf.value), picked); } catch (error) { replace(said, `${error.message}: ${picked.text}`); }
}

// -- what was decided, as a dataset ------------------------------------------------------------------------

function save() {
  const rows = index.filter(isDone).map((entry) => {
    const row = parseJson(lines[entry.at]);
    const mine = decided[entry.at];
    const corrected = Object.keys(mine.marks).filter((pointer) => mine.marks[pointer] === 'corrected');
    const value = mine.value === undefined ? row.value : parseJson(mine.value);
    return JSON.stringify({ id: row.key, ...(row.input === undefined ? {} : { input: row.input }), source: row.source, expected: value, ...(corrected.length ? { corrected } : {}) });
  });
  if (rows.length) download(about.download, `${rows.join('\n')}\n`);
}

const leaf = () => leavesOf(current.value).find((each) => each.pointer === selected);
const ACTIONS = {
  a: () => accept(selected), Enter: () => accept(selected), e: () => edit(selected), t: take, x: () => leaf() && remove(leaf()), u: undo, A: acceptRow, E: editRow,
  j: () => move(1), ArrowDown: () => move(1), k: () => move(-1), ArrowUp: () => move(-1), n: () => step(1), p: () => step(-1), d: save,
  '/': () => search.focus(), '?': () => help.showModal(),
};

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open || whole.open) return;
  const typing = event.target.closest('input, textarea, select');
  if (typing) { if (event.key === 'Escape') typing.blur(); return; }
  if (event.key === 'Enter' && event.target.closest('button, mark')) return;
  if (event.key.startsWith('Arrow') && event.target.closest('.rows, .source, .picture')) return;
  if (!ACTIONS[event.key] || (!chosen && !['/', '?', 'd'].includes(event.key))) return;
  event.preventDefault();
  ACTIONS[event.key]();
});

list.addEventListener('scroll', drawList, { passive: true });
window.addEventListener('resize', drawList);
search.addEventListener('input', arrange);
filter.addEventListener('change', arrange);
sorting.addEventListener('change', arrange);

replace(document.getElementById('tools'), progress, exporting);
replace(document.getElementById('main'),
  h('section', { class: 'side', 'aria-label': 'All rows' }, h('div', { class: 'row-tools' }, search, filter, sorting), list),
  h('section', { class: 'middle', 'aria-label': 'The source of the row' },
    h('div', { class: 'row-tools' }, title, h('span', { class: 'grow' }), view.tabs, h('button', { onclick: () => step(-1), title: 'previous row (p)' }, '← previous'), h('button', { onclick: () => step(1), title: 'next row (n)' }, 'next →')), view.source, view.picture,
    h('p', { class: 'legend' }, h('span', {}, h('mark', { class: 'hue0 exact' }, 'exact')), h('span', {}, h('mark', { class: 'hue0 normalised' }, 'normalized')), h('span', {}, h('mark', { class: 'hue0 fuzzy' }, 'fuzzy')), h('span', {}, h('mark', { class: 'hue0 partial' }, 'partial')))),
  h('section', { class: 'right-side', 'aria-label': 'The values of the row' },
    h('div', { class: 'row-tools' }, h('h2', {}, 'Values'), h('span', { class: 'grow' }), h('button', { onclick: acceptRow, title: 'accept what is left, next row (A)' }, 'accept row'), h('button', { onclick: editRow, title: 'correct the whole row as JSON (E)' }, 'as JSON')), said, view.tree,
    h('p', { class: 'hint' }, [['a', 'accept'], ['e', 'correct'], ['t', 'take the selected text'], ['x', 'not there'], ['A', 'accept the row'], ['?', 'all keys']].map(([key, what]) => h('span', {}, h('kbd', {}, key), ` ${what}`)))),
  help, whole);
document.getElementById('help').addEventListener('click', () => help.showModal());
arrange();
if (order.length) open(order[0]);
else tell();
document.documentElement.dataset.ready = 'yes';
