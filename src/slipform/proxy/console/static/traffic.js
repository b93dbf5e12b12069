// The list of calls: moves as they come, keeps the one in focus where it is, and makes only the rows that are seen.
import { get } from './api.js';
import { clock, count, h, money, ms, none, replace, stage } from './dom.js';

const HEIGHT = 30;
const SPARE = 6;

export async function traffic(main, state) {
  const parameters = new URLSearchParams(location.search);
  let query = parameters.get('q') || '';
  let rows = [];
  let paused = false;
  let waiting = [];
  let chosen = -1;
  let more = false;
  let loading = false;

  const search = h('input', { class: 'grow', id: 'search', type: 'search', value: query, placeholder: 'model:gpt* schema:invoice stage:failed ms:>2000', 'aria-label': 'Filter calls' });
  const pause = h('button', { 'aria-pressed': 'false' }, 'pause');
  const summary = h('span', { class: 'label', 'aria-live': 'polite' });
  const inner = h('div', { class: 'inner' });
  const list = h('div', { class: 'list', tabindex: '0', role: 'region', 'aria-label': 'Calls' }, inner);
  const heads = ['time', 'api', 'model', 'schema', 'stage', 'att', 'first', 'total', 'tokens', 'cost', 'caller'];
  const wide = new Set(['api', 'schema', 'att', 'first', 'tokens', 'cost', 'caller']);
  replace(main, h('h1', {}, 'Traffic'),
    h('div', { class: 'row-tools' }, search, pause,
      ...['stage:failed', 'stage:reasked', 'ms:>2000'].map((each) => h('button', { onclick: () => filter(each) }, each)),
      h('button', { onclick: () => filter('') }, 'all'), summary),
    h('div', { class: 'call-head', 'aria-hidden': 'true' }, heads.map((each) => h('span', { class: (wide.has(each) ? 'wide ' : '') + (['att', 'first', 'total', 'tokens', 'cost'].includes(each) ? 'num' : '') }, each))), list);

  function filter(text) {
    query = text;
    search.value = text;
    history.replaceState(null, '', text ? `?q=${encodeURIComponent(text)}` : location.pathname);
    load();
  }

  function cells(row) {
    const tokens = row.input === null && row.output === null ? none : `${count(row.input)}/${count(row.output)}`;
    return [[clock(row.at)], [row.api.replace('openai-', ''), 'wide'], [row.model || none], [row.schema || none, 'wide'], [stage(row)], [row.attempts || none, 'wide num'],
      [ms(row.first_ms), 'wide num'], [row.stage === 'under_way' ? (row.poured ? `${count(row.poured)} ch` : '…') : ms(row.ms), 'num'], [tokens, 'wide num'], [money(row.cost), 'wide num'], [row.caller || none, 'wide']]
      .map(([content, look]) => h('span', { class: look || '' }, content));
  }

  function draw() {
    inner.style.height = `${rows.length * HEIGHT}px`;
    const first = Math.max(0, Math.floor(list.scrollTop / HEIGHT) - SPARE);
    const last = Math.min(rows.length, first + Math.ceil(list.clientHeight / HEIGHT) + 2 * SPARE);
    const shown = [];
    for (let index = first; index < last; index += 1) {
      const row = rows[index];
      const link = h('a', { class: `call${index === chosen ? ' chosen' : ''}`, href: `/console/r/${row.id}`, 'data-id': row.id }, cells(row));
      link.style.top = `${index * HEIGHT}px`;
      shown.push(link);
    }
    replace(inner, shown.length ? shown : empty());
    if (more && last >= rows.length - 20) older();
  }

  function empty() {
    if (query) return h('p', { class: 'card' }, 'No call matches ', h('code', {}, query), '. ', h('button', { onclick: () => filter('') }, 'show all'));
    const command = `curl ${location.origin}/v1/chat/completions -H 'content-type: application/json' -d '{"messages":[{"role":"user","content":"Ada is 36"}],"response_format":{"type":"json_schema","json_schema":{"name":"person","schema":{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name","age"]}}}}'`;
    return h('div', { class: 'card' }, h('h2', {}, 'No call yet'), h('p', {}, 'Make one from a shell, or ', h('a', { href: '/console/playground' }, 'in the playground'), ':'), h('pre', {}, command));
  }

  function summarise(kept) {
    if (kept) state.kept = kept;
    replace(summary, `${count(rows.length)} shown, ${count(state.kept ? state.kept.rows : rows.length)} kept`);
  }

  async function load() {
    const answer = await get(`requests?limit=200&q=${encodeURIComponent(query)}`);
    rows = [...answer.under_way.sort((a, b) => b.at - a.at), ...answer.rows];
    more = answer.more;
    chosen = -1;
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
      rows = rows.concat(answer.rows.filter((row) => !known.has(row.id)));
      more = answer.more && answer.rows.length > 0;
      summarise(answer.kept);
    } finally { loading = false; }
    draw();
  }

  function put(row) {
    const at = rows.findIndex((each) => each.id === row.id);
    if (at >= 0) rows[at] = row;
    else {
      rows.unshift(row);
      if (chosen >= 0) chosen += 1;
      // What is looked at stays where it is.
      if (list.scrollTop > 0) list.scrollTop += HEIGHT;
    }
  }

  let drawing = 0;
  function soon() {
    if (!drawing) drawing = requestAnimationFrame(() => { drawing = 0; draw(); });
  }

  const onRow = (row) => {
    if (paused) { waiting.push(row); replace(pause, `resume (${waiting.length} new)`); return; }
    if (query) { reload(); return; }
    put(row);
    soon();
  };
  const onPour = (grown) => {
    const row = rows.find((each) => each.id === grown.id);
    if (!row || row.stage !== 'under_way') return;
    row.poured = (row.poured || 0) + grown.released;
    row.attempts = grown.attempt;
    soon();
  };
  let reloading = 0;
  function reload() { if (!reloading) reloading = setTimeout(() => { reloading = 0; load(); }, 500); }

  pause.addEventListener('click', () => {
    paused = !paused;
    pause.setAttribute('aria-pressed', String(paused));
    replace(pause, paused ? 'resume' : 'pause');
    if (!paused) { waiting.forEach(put); waiting = []; draw(); }
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
  const beat = setInterval(() => summarise(), 1000);
  return {
    events: { begin: onRow, end: onRow, gap: load, pour: onPour },
    keys: { j: () => move(1), k: () => move(-1), Enter: () => { if (chosen >= 0) state.go(`/console/r/${rows[chosen].id}`); } },
    close: () => { clearInterval(beat); clearTimeout(reloading); resize.disconnect(); },
  };
}
