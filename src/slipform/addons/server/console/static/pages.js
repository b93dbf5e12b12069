// The other pages: overview, about.
import { del, get, post } from './api.js';
import { asTable, bars, keyOf, lines } from './chart.js';
import { bytes, count, h, head, money, ms, none, percent, replace, table, width } from './dom.js';
import { runSample } from './sample.js';

export const STAGES = ['first', 'repaired', 'reasked', 'failed', 'passed', 'cached'];
export const NAMES = [['first', 'first try'], ['repaired', 'repaired'], ['reasked', 'retried'], ['failed', 'failed'], ['passed', 'passed'], ['cached', 'cached']];
const WINDOWS = [['15 min', 900], ['1 h', 3600], ['24 h', 86400]];
export const to = (query) => `/console/traffic?q=${encodeURIComponent(query)}`;

export async function overview(main, state) {
  let window = 900;
  const box = h('div');
  const picks = WINDOWS.map(([name, value]) => h('button', { 'aria-pressed': String(value === window), onclick: () => { window = value; picks.forEach((each, index) => each.setAttribute('aria-pressed', String(WINDOWS[index][1] === value))); draw(); } }, name));
  replace(main, head('Overview', null, h('div.seg', { role: 'group', 'aria-label': 'Window' }, picks)), box);
  const figure = (name, value, query) => h('div', h('dt', {}, name), h('dd', {}, query ? h('a', { href: to(query) }, value) : value));
  async function draw() {
    const [found, known] = await Promise.all([get(`stats?window=${window}`), get(`schemas?window=${window}`)]);
    if (!found.calls) {
      const run = h('button.main', { onclick: () => runSample(state, run) }, 'Run a sample call');
      replace(box, h('div.card.empty', h('h2', 'No call in this time'), h('p', 'Figures, charts and weak fields appear here as soon as something is called.'), h('div.tools', {}, run, h('a.button', { href: '/console/playground' }, 'Open the playground'))));
      return;
    }
    const enforced = ['first', 'repaired', 'reasked', 'failed'].reduce((sum, name) => sum + (found.stages[name] || 0), 0);
    const weak = known.schemas.flatMap((each) => each.fields.map((one) => [each, one])).sort((a, b) => b[1].count - a[1].count).slice(0, 8);
    const errors = Object.entries(found.errors).flatMap(([provider, by]) => Object.entries(by).map(([status, number]) => [h('a', { href: to(`provider:${provider} stage:failed`) }, provider), status, count(number)]));
    const tokens = [['answer', 'answers'], ['reask', 'retries']];
    replace(box, h('dl.figures', {}, figure('calls', count(found.calls), ' '), figure('valid', percent(found.valid)), figure('retried', enforced ? percent((found.stages.reasked || 0) / enforced) : none, 'stage:reasked'),
      figure('failed', count(found.stages.failed || 0), 'stage:failed'), figure('p50', ms(found.p50)), figure('p95', ms(found.p95), found.p95 ? `ms:>${Math.floor(found.p95)}` : null), figure('first byte', ms(found.first_p50)), figure('overhead', ms(found.overhead_p50)), figure('spent', money(found.cost))),
    h('div.cards', {},
      h('section.card', h('h2', 'Where answers became valid'), bars('Calls by where they became valid', found.series, STAGES), keyOf(NAMES.filter(([name]) => found.stages[name])), asTable(found.series, NAMES, 'Calls by stage')),
      h('section.card', h('h2', 'Latency'), lines('Latency', found.series, ['p95', 'p50']), keyOf([['p50', 'p50'], ['p95', 'p95']]), asTable(found.series, [['p50', 'p50'], ['p95', 'p95']], 'Latency', ms)),
      h('section.card', h('h2', 'Output tokens'), bars('Output tokens', found.series, ['answer', 'reask']), keyOf(tokens), asTable(found.series, tokens, 'Tokens')),
      h('section.card.two', h('h2', 'Models'), table(['model', ...NAMES.slice(0, 5).map((each) => each[1])], Object.entries(found.models).map(([model, stages]) => [h('a', { href: to(`model:${model}`) }, model), ...STAGES.slice(0, 5).map((name) => (stages[name] ? h('a', { href: to(`model:${model} stage:${name}`) }, count(stages[name])) : h('span.muted', '·')))]), 'Models', [1, 2, 3, 4, 5])),
      h('section.card', h('h2', 'Fields violated most'), weak.length ? h('div.heat', {}, weak.map(([schema, one]) => heat([h('a', { href: `/console/schemas/${encodeURIComponent(schema.schema)}` }, schema.schema), ' ', field(one.schema_path)], one.count, schema.calls))) : h('p.muted', 'None: every answer had its shape.')),
      h('section.card', h('h2', 'Upstream errors'), errors.length ? table(['provider', 'status', 'times'], errors, 'Upstream errors', [2]) : h('p.muted', 'None.'))));
  }
  await draw();
  const timer = setInterval(() => { if (!document.hidden && !box.querySelector('details[open]')) draw(); }, 5000);
  return { close: () => clearInterval(timer) };
}

export const heat = (name, number, calls) => h('div', h('span', {}, name), h('span.label', `${count(number)} of ${count(calls)}`), h('div.bar', { role: 'img', 'aria-label': percent(number / Math.max(1, calls)) }, width(h('div'), number / Math.max(1, calls))));

/** A place in a schema as people say it: `/properties/items/items/properties/price/maximum` is `items[].price`, maximum. */
function fieldOf(pointer) {
  const steps = String(pointer).split('/').slice(1);
  let path = '';
  let at = 0;
  for (; at < steps.length - 1; at += 1) {
    if (steps[at] === 'properties' || steps[at] === '$defs') { at += 1; path += `${path ? '.' : ''}${(steps[at] || '').replaceAll('~1', '/').replaceAll('~0', '~')}`; } else if (steps[at] === 'items') path += '[]'; else if (!/^\d+$/.test(steps[at])) path += ` ${steps[at]}`;
  }
  return [path || '(root)', at < steps.length ? steps[at] : ''];
}

export const field = (pointer) => { const [path, keyword] = fieldOf(pointer); return [h('code', { title: pointer || '/' }, path), ' ', h('span.label', {}, keyword)]; };

/** The button that turns the recording of prompts and answers on or off, where only this machine can call. */
export function recordingSwitch(isRecorded, after) {
  const change = async () => { await (isRecorded ? del('tracing') : post('tracing', { recording: true })); after(); };
  return h(isRecorded ? 'button' : 'button.main', { onclick: change }, isRecorded ? 'Stop recording' : 'Record from now on');
}

export async function about(main, state) {
  const me = await get('me');
  const { tracing } = me.traces;
  const kept = me.history;
  const words = { off: 'They are not recorded.', failures: 'They are recorded when a call fails.', on: me.traces.switch ? 'They are recorded in memory, because only this machine can reach the server.' : 'They are recorded.' }[me.traces.mode];
  const isRecorded = me.traces.mode === 'on';
  const minutes = h('select', { 'aria-label': 'For how long' }, [['10 minutes', 10], ['30 minutes', 30], ['60 minutes', 60]].map(([name, value]) => h('option', { value }, name)));
  replace(main, head('About', 'What runs here, and what is kept.'), h('div.stack', h('section.card', h('h2', 'This server'), table(['', ''], [['version', me.version], ['build', me.build], ['signed in as', me.operator || 'the holder of the printed link'], ['configuration', `generation ${me.generation}`], ['workers', me.workers.count === 1 ? 'one' : `${me.workers.reached} of ${me.workers.count} answer`], ['running since', new Date(me.started * 1000).toLocaleString('en-GB')]], 'This server')),
    h('section.card', h('h2', 'Prompts and answers'), h('p', {}, tracing ? `Recorded until ${new Date(tracing.until * 1000).toLocaleTimeString('en-GB')}, of ${count(tracing.left)} more calls at most${tracing.model ? ` of ${tracing.model}` : ''}.` : `${words} Times, tokens and outcomes always are.`),
      h('div.tools', {}, tracing ? h('button', { onclick: async () => { await del('tracing'); state.refresh(); } }, 'Stop recording') : me.traces.switch ? recordingSwitch(isRecorded, state.refresh) : isRecorded ? null : [minutes, h('button.main', { onclick: async () => { await post('tracing', { minutes: Number(minutes.value) }); state.refresh(); } }, 'Record prompts')])),
    h('section.card', h('h2', 'What is kept'), table(['', 'calls', 'bytes', 'limit'], [['figures, in memory', count(me.kept.rows), bytes(me.kept.bytes), `${bytes(me.limits.bytes)} per worker`], ['prompts and answers, in memory', count(me.kept.traces), bytes(me.kept.trace_bytes), `${bytes(me.limits.trace_bytes)} per worker`], ['pinned', count(me.kept.pinned), none, `${me.limits.pinned} calls`],
      kept ? [[`history, ${kept.path}`, h('br'), h('span.label', `figures for ${kept.days} days, prompts and answers for ${kept.text_days}`)], count(kept.rows), bytes(kept.bytes), bytes(kept.max_bytes)] : ['history on disk', 'off', none, h('code', 'server.history')]], 'What is kept', [1, 2, 3]),
    kept?.problem ? h('p.note.bad', `The history cannot be written: ${kept.problem}. Calls are kept in memory; ${count(kept.dropped)} were not written.`) : null,
    h('div.tools', h('button', { onclick: async () => { await del('requests'); state.refresh(); } }, 'Clear history'))),
    h('section.card', h('h2', 'An exported call'), h('p.muted', 'Drop a .slipform.json file on any page, or choose one. It is read here and sent nowhere.'), h('input', { type: 'file', accept: '.json,application/json', 'aria-label': 'Open an exported call', onchange: (event) => state.openFile(event.target.files[0]) })),
    h('div.tools', h('button', { onclick: state.switchTheme }, 'Theme'), h('button', { onclick: state.signOut }, 'Sign out'))));
  return {};
}
