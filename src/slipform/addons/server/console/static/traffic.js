// The list of calls: moves as they come, keeps the one in focus where it is, and makes only the rows that are seen.
import { get } from './api.js';
import { places } from './conversation.js';
import { clock, copy, count, h, head, icon, money, ms, none, replace, stage, width } from './dom.js';
import { curl, runSample } from './sample.js';

const HEIGHT = 36;
const SPARE = 6;
const SHOWN = 60;
const MOST = 4000; // rows that the page remembers; older ones are asked for again when somebody scrolls to them
const SLOW = 2000;
const HEADS = [['time', ''], ['model', ''], ['schema', 'mid'], ['outcome', ''], ['tries', 'wide num'], ['total', 'mid'], ['tokens in / out', 'wide num'], ['cost', 'wide num'], ['caller', 'wide']];
const FILTERS = [['', 'All'], ['stage:failed', 'Failed'], ['stage:reasked', 'Retried'], ['stage:repaired', 'Repaired'], ['ms:>2000', 'Slow']];

export async function traffic(main, state) {
  let query = new URLSearchParams(location.search).get('q') || '';
  let rows = [];
  let pinned = [];
  let paused = false;
  let waiting = new Map();
  let chosen = -1;
  let more = false;
  let loading = false;
  let narrowest = null;
  let unreachable = 0;
  const fresh = new Set();
  const conversations = places(() => soon());

  const search = h('input', { id: 'search', type: 'search', value: query, placeholder: 'model:gpt*  schema:invoice  stage:failed  ms:>2000', 'aria-label': 'Filter calls' });
  const pause = h('button', { 'aria-pressed': 'false', class: 'pause' }, icon('pause'), 'Pause');
  const summary = h('span.label', { 'aria-live': 'polite' });
  const inner = h('div.inner');
  const list = h('div.list', { tabindex: '0', role: 'region', 'aria-label': 'Calls' }, inner);
  const filters = h('div.seg', { role: 'group', 'aria-label': 'Quick filters' });
  const pins = h('div');
  replace(main, head('Traffic', null, summary, pause),
    h('div.tools', h('div.search', {}, icon('search'), search), filters), pins,
    h('div.calls', h('div.call-head', { 'aria-hidden': 'true' }, HEADS.map(([name, look]) => h('span', { class: look }, name))), list));

  function filter(text) {
    query = text;
    search.value = text;
    history.replaceState(null, '', text ? `?q=${encodeURIComponent(text)}` : location.pathname);
    list.scrollTop = 0;
    load();
  }

  const drawFilters = () => replace(filters, FILTERS.map(([text, name]) => h('button', { 'aria-pressed': String(query === text), onclick: () => filter(text) }, name)));

  function took(row) {
    if (row.stage === 'under_way') return h('span.spark', {}, width(h('i.grow'), Math.min(1, (row.poured || 8) / 800)), row.poured ? `${count(row.poured)} ch` : '…');
    return h('span.spark', {}, width(h('i', { class: row.ms > SLOW ? 'slow' : '' }), Math.log10(1 + row.ms / 5) / 4), ms(row.ms));
  }

  function cells(row) {
    const tokens = row.input === null && row.output === null ? none : `${count(row.input)} / ${count(row.output)}`;
    const [at, of] = conversations.of(row.id) || [];
    const turn = of ? h('span.place', { title: `Call ${at} of ${of} of a conversation` }, `${at}/${of}`) : null;
    return [[clock(row.at), 'time'], [[row.model || none, h('span.api', {}, row.api.replace('openai-', '')), turn], 'model'], [row.schema || none, 'mid'], [stage(row), ''], [row.attempts || none, 'wide num'], [took(row), 'mid'], [tokens, 'wide num'], [money(row.cost), 'wide num'], [row.caller || none, 'wide']]
      .map(([content, look]) => h('span', { class: look }, content));
  }

  // Rows that do not change stay the same elements, so that a click is not lost because the list moved on.
  const made = new Map();
  function rowNode(row, isChosen) {
    const old = made.get(row.id);
    const place = String(conversations.of(row.id));
    if (old?.row === row && old.poured === row.poured && old.isChosen === isChosen && old.place === place) return old.node;
    const node = h('a', { class: `call${isChosen ? ' chosen' : ''}${fresh.delete(row.id) ? ' fresh' : ''}`, href: `/console/r/${row.id}`, 'data-id': row.id, title: row.outcome === 'ok' || row.stage === 'under_way' ? null : row.outcome }, cells(row));
    made.set(row.id, { row, poured: row.poured, isChosen, place, node });
    return node;
  }

  function draw() {
    inner.style.height = `${rows.length * HEIGHT}px`;
    const first = Math.max(0, Math.floor(list.scrollTop / HEIGHT) - SPARE);
    const last = Math.min(rows.length, first + Math.ceil(list.clientHeight / HEIGHT) + 2 * SPARE);
    if (first >= last) { replace(inner, empty()); made.clear(); return; }
    const shown = [];
    for (let index = first; index < last; index += 1) {
      const node = rowNode(rows[index], index === chosen);
      node.style.top = `${index * HEIGHT}px`;
      shown.push(node);
    }
    const kept = new Set(shown);
    for (const node of [...inner.children]) if (!kept.has(node)) { node.remove(); if (made.get(node.dataset.id)?.node === node) made.delete(node.dataset.id); }
    let next = inner.firstChild;
    for (const node of shown) { if (node === next) next = next.nextSibling; else inner.insertBefore(node, next); }
    if (more && last >= rows.length - 20) older();
  }

  function empty() {
    if (query) {
      return h('div.empty', h('h2', 'No call fits'), h('p', h('code', {}, query)), narrowest ? h('p', 'Without ', h('code', {}, narrowest.word), ` there would be ${count(narrowest.without)}.`) : null,
        h('div.tools', h('button', { onclick: () => filter('') }, 'Show all calls')));
    }
    const command = curl(location.origin, state.model);
    const run = h('button.main', { id: 'sample', onclick: () => runSample(state, run) }, icon('play'), 'Run a sample call');
    return h('div.empty', {}, art(), h('h2', 'See an answer being poured'), h('p', 'One click asks the model for an order as JSON and shows every byte of the answer take its shape. Your own calls appear here as they come.'),
      h('div.tools', {}, run, h('a.button', { href: '/console/playground' }, 'Open the playground')), h('p.label', 'Or from a shell:'), h('pre', {}, command),
      h('div.tools', h('button.plain', { onclick: (event) => copy(command, event.currentTarget) }, icon('copy'), 'copy')));
  }

  function summarise(kept) {
    if (kept) state.kept = kept;
    const all = state.kept || { rows: rows.length, dropped: 0 };
    replace(summary, `${count(Math.max(all.rows, rows.length))} kept${all.dropped ? `, ${count(all.dropped)} made way` : ''}${unreachable ? `, ${unreachable} worker not reachable` : ''}`);
  }

  function drawPins() {
    replace(pins, pinned.length && !query ? h('div.meta', h('span.label', {}, icon('pin'), ' pinned'), pinned.map((row) => h('a.button', { href: `/console/r/${row.id}` }, row.model || none, ' ', stage(row)))) : null);
    for (const svg of pins.querySelectorAll('.label svg')) svg.setAttribute('width', '14');
  }

  async function load() {
    const answer = await get(`requests?limit=200&q=${encodeURIComponent(query)}`);
    rows = [...answer.under_way.sort((a, b) => b.at - a.at), ...answer.rows];
    ({ more, narrowest, unreachable } = answer);
    pinned = answer.pinned || [];
    chosen = -1;
    drawFilters();
    drawPins();
    summarise(answer.kept);
    draw();
  }

  async function older() {
    if (loading) return;
    loading = true;
    try {
      const last = rows[rows.length - 1];
      const answer = await get(`requests?limit=200&q=${encodeURIComponent(query)}&before=${last.at}`);
      const known = new Set(rows.map((row) => row.id));
      const added = answer.rows.filter((row) => !known.has(row.id));
      rows = rows.concat(added);
      more = answer.more && added.length > 0;
    } finally { loading = false; }
    draw();
  }

  // What came since the last frame is put into the list at once: one look at its place, one move.
  let arrived = new Map();
  function settle() {
    if (!arrived.size) return;
    for (let at = 0; at < rows.length; at += 1) {
      const now = arrived.get(rows[at].id);
      if (!now) continue;
      if (now.stage !== 'under_way') rows[at] = now;
      arrived.delete(now.id);
    }
    const added = [...arrived.values()].reverse();
    arrived = new Map();
    if (!added.length) return;
    rows = added.concat(rows);
    for (const row of added.slice(0, SHOWN)) fresh.add(row.id);
    if (state.kept) state.kept.rows += added.length;
    if (chosen >= 0) chosen += added.length;
    // What is looked at stays where it is.
    const top = list.scrollTop;
    if (top > 0) { inner.style.height = `${rows.length * HEIGHT}px`; list.scrollTop = top + added.length * HEIGHT; }
    if (rows.length > MOST && (top + list.clientHeight) / HEIGHT + added.length < MOST / 2 && chosen < MOST / 2) { rows.length = MOST / 2; more = true; }
  }

  let drawing = 0;
  const soon = () => { drawing ||= requestAnimationFrame(() => { drawing = 0; settle(); draw(); }); };
  let reloading = 0;
  const reload = () => { reloading ||= setTimeout(() => { reloading = 0; load(); }, 500); };

  const onRow = (row) => {
    if (paused) { if (waiting.size <= MOST) waiting.set(row.id, row); replace(pause, icon('play'), `Resume (${count(waiting.size)} new)`); return; }
    if (query) { reload(); return; }
    arrived.set(row.id, row);
    soon();
  };
  const onPour = (grown) => {
    const row = arrived.get(grown.id) || rows.find((each) => each.id === grown.id);
    if (!row || row.stage !== 'under_way') return;
    row.poured = grown.sent || grown.received;
    row.attempts = grown.attempt;
    soon();
  };

  pause.addEventListener('click', () => {
    paused = !paused;
    pause.setAttribute('aria-pressed', String(paused));
    replace(pause, icon(paused ? 'play' : 'pause'), paused ? 'Resume' : 'Pause');
    if (!paused) { if (waiting.size > 500) load(); else waiting.forEach(onRow); waiting = new Map(); }
  });
  search.addEventListener('change', () => filter(search.value.trim()));
  list.addEventListener('scroll', soon, { passive: true });
  const resize = new ResizeObserver(soon);
  resize.observe(list);
  const move = (by) => {
    chosen = Math.max(0, Math.min(rows.length - 1, chosen + by));
    const top = chosen * HEIGHT;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + HEIGHT > list.scrollTop + list.clientHeight) list.scrollTop = top + HEIGHT - list.clientHeight;
    draw();
  };
  await load();
  conversations.read();
  const beat = setInterval(() => summarise(), 1000);
  return {
    events: { begin: onRow, end: (row) => { onRow(row); conversations.later(row); }, gap: load, pour: onPour },
    keys: { j: () => move(1), k: () => move(-1), Enter: () => { if (chosen >= 0) state.go(`/console/r/${rows[chosen].id}`); } },
    close: () => { clearInterval(beat); clearTimeout(reloading); conversations.close(); resize.disconnect(); },
  };
}

/** A form being filled: what the product does, in one small picture. */
function art() {
  const bar = (x, y, w, colour) => h('rect', { x, y, width: w, height: 8, rx: 4, fill: `var(${colour})` });
  return h('svg.art', { viewBox: '0 0 120 76', 'aria-hidden': 'true' }, h('path', { d: 'M18 6v58a6 6 0 0 0 6 6h72a6 6 0 0 0 6-6V6', fill: 'none', stroke: 'var(--edge)', 'stroke-width': 4, 'stroke-linecap': 'round' }),
    bar(30, 52, 60, '--released'), bar(30, 38, 46, '--released'), bar(30, 24, 34, '--held'), bar(30, 10, 18, '--dropped'));
}
