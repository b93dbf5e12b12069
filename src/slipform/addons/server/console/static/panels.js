// What stands under a call: its repairs as a diff, its prompt, what dialects make of its schema, a second judgement, timing, raw data.
import { post } from './api.js';
import { bytes, h, long, ms, none, replace, table } from './dom.js';
import { field } from './pages.js';
import { unitsBefore } from './pour.js';
import { callsOf, earlierCalls, toolsOf, turnsOf } from './trace.js';

/** The tabs of a call; `choose` opens one, `draft` is what the playground begins with. */
export function panels(call) {
  const box = h('div', { role: 'tabpanel', class: 'card', tabindex: '0', 'aria-label': 'Details' });
  const tabs = [['Repairs', repairsView], ['Prompt', promptView], ...(toolsOf(call.body).length ? [['Tools', toolsView]] : []), ['Dialect', dialectView], ['Re-validate', rejudgeView], ['Timeline', timelineView], ['Raw', rawView]];
  const buttons = tabs.map(([name], index) => h('button', { role: 'tab', 'aria-selected': String(index === 0), onclick: () => choose(index) }, name));
  const choose = (index) => {
    buttons.forEach((button, at) => button.setAttribute('aria-selected', String(at === index)));
    replace(box, tabs[index][1](call));
  };
  const lightUp = (found) => {
    choose(1);
    replace(box, promptView(call, found.spans));
    box.querySelector('mark')?.scrollIntoView({ block: 'center' });
  };
  const toolsTab = tabs.findIndex(([name]) => name === 'Tools');
  const isTouched = call.attempts.some((each) => (each.repairs || []).length || (each.patch || each.patches || []).length);
  return { first: isTouched || !call.body ? 0 : Math.max(1, toolsTab), node: h('div', h('div.tabs', { role: 'tablist', 'aria-label': 'Details of the call' }, buttons), box), choose, lightUp, draft: () => draftOf(call) };
}

/** The text with its edits in place: what was taken out, what was put in, guesses marked. */
export function diff(given, edits) {
  const nodes = [];
  // Positions count characters, of which some are two to the browser.
  const text = /[\ud800-\udfff]/.test(given) ? [...given] : given;
  const size = (part) => (text === given ? part.length : [...part].length);
  const cut = (from, to) => (text === given ? text.slice(from, to) : text.slice(from, to).join(''));
  let at = 0;
  for (const edit of [...edits].sort((a, b) => a.position - b.position)) {
    if (edit.position < at) continue;
    nodes.push(h('span', {}, cut(at, edit.position)));
    const look = { class: edit.certain === false ? 'guess' : '', title: edit.kind };
    const change = (before, after) => nodes.push(before ? h('del', look, before) : null, after ? h('ins', look, after) : null);
    const { before, after } = edit;
    // Of a string whose quotes alone are changed, only the quotes are shown as changed.
    if (before.length > 2 && after.length > 2 && before.slice(1, -1) === after.slice(1, -1)) {
      change(before[0], after[0]);
      nodes.push(h('span', {}, before.slice(1, -1)));
      change(before[before.length - 1], after[after.length - 1]);
    } else change(before, after);
    at = edit.position + size(edit.before);
  }
  nodes.push(h('span', {}, cut(at)));
  return h('pre.diff', { tabindex: '0', 'aria-label': 'Repairs in place' }, nodes);
}

function repairsView({ attempts, trace }) {
  const found = attempts.map((attempt, index) => {
    const repairs = attempt.repairs || [];
    const patches = attempt.patch || attempt.patches || [];
    if (!repairs.length && !patches.length) return null;
    const text = trace?.texts[index];
    const kinds = new Map();
    for (const each of repairs) { const key = `${each.kind} ${each.certain}`; const was = kinds.get(key) || { ...each, count: 0 }; was.count += each.count || 1; kinds.set(key, was); }
    return h('section', {}, attempts.length > 1 ? h('h3', `Attempt ${index + 1}`) : null,
      text && repairs.length && repairs[0].position !== undefined ? diff(text, repairs) : null,
      repairs.length ? table(['repair', 'times', 'sure'], [...kinds.values()].map((each) => [each.kind.replaceAll('_', ' '), each.count, each.certain === false ? h('span.pill.warn', 'a guess') : h('span.pill.good', 'certain')]), 'Repairs') : null,
      patches.length ? table(['patch', 'where', 'to', 'why', 'risk'], patches.map((each) => [each.op, h('code', {}, each.path || none), each.value === undefined ? none : h('code', {}, JSON.stringify(each.value).slice(0, 200)), each.reason, h('span', { class: `pill ${each.risk === 'low' ? 'good' : each.risk === 'high' ? 'bad' : 'warn'}` }, each.risk)]), 'Patches') : null);
  }).filter(Boolean);
  return found.length ? found : h('p.muted', 'Nothing had to be repaired or patched.');
}

function promptView({ body, row }, spans = []) {
  const turns = turnsOf(body);
  const source = body?.slipform && body.slipform.evidence?.source;
  if (typeof source === 'string') turns.push(['source', source]);
  if (!turns.length) return h('p.muted', {}, row.absent || 'The prompt was not recorded.');
  let last = turns.length - 1;
  while (last > 0 && !['user', 'source'].includes(turns[last][0])) last -= 1;
  return turns.map(([role, text], index) => h('div.turn', h('b', {}, role), index === last && spans.length ? h('pre.pour', { tabindex: '0', 'aria-label': 'Where it stands' }, lit(text, spans)) : long(text, `What ${role} said`)));
}

const argumentsBox = (args) => h('pre', { tabindex: '0', 'aria-label': 'Arguments' }, typeof args === 'string' ? args : JSON.stringify(args, null, 2));

/** The calls of an answer, each with its arguments and its own verdict: `verdicts` are those of an attempt, if its tools were validated. */
export function callsView(calls, verdicts) {
  return calls.map((call, index) => {
    const verdict = (verdicts || []).find((each) => each.id === call.id) || verdicts?.[index];
    const wrong = verdict?.violations || [];
    return h('div.turn', {}, h('code', {}, call.name), ' ', !verdict ? h('span.pill', 'not validated') : wrong.length ? h('span.pill.bad', '✗ invalid') : h('span.pill.good', '✓ valid'), argumentsBox(call.args),
      wrong.length ? h('ul.bad', {}, wrong.map((each) => h('li', {}, `${each.path || ''} ${each.message}`))) : null);
  });
}

/** The calls of one attempt, as the model wrote them. */
export const attemptCalls = (verdicts) => (verdicts?.length ? callsView(verdicts.map((each) => ({ name: each.name, id: each.id, args: pretty(each.arguments) })), verdicts) : null);

const pretty = (text) => { try { return JSON.parse(text); } catch { return text; } };

function toolsView({ body, row, trace }) {
  const calls = callsOf(trace);
  const earlier = earlierCalls(body);
  const tries = trace?.calls || [];
  const retried = tries.slice(0, -1).map((verdicts, index) => (verdicts.length ? [h('h3', `Calls of attempt ${index + 1}, which was retried`), attemptCalls(verdicts)] : null));
  return [retried, h('h3', 'Calls of this answer'), calls.length ? callsView(calls, tries.at(-1)) : attemptCalls(tries.at(-1)) || h('p.muted', {}, row.stream && !trace?.report ? 'The calls of a stream that passed through are under Raw.' : 'The model called no tool.'),
    earlier.length ? [h('h3', 'Calls before, with their results'), table(['tool', 'arguments', 'result'], earlier.map((each) => [each.name, h('code', {}, JSON.stringify(each.args).slice(0, 300)), each.result === undefined ? none : String(each.result).slice(0, 300)]), 'Calls before')] : null,
    h('h3', 'Tools offered'), toolsOf(body).map((each) => h('details', h('summary', h('code', {}, each.name), ` ${each.description.slice(0, 120)}`), each.schema ? argumentsBox(each.schema) : null))];
}

function lit(text, spans) {
  const nodes = [];
  let at = 0;
  for (const span of [...spans].sort((a, b) => a.start - b.start)) {
    const [from, to] = [unitsBefore(text, span.start), unitsBefore(text, span.end)];
    if (from < at) continue;
    nodes.push(h('span', {}, text.slice(at, from)), h('mark', {}, text.slice(from, to)));
    at = to;
  }
  return [...nodes, h('span', {}, text.slice(at))];
}

function dialectView({ schema, row }) {
  if (!schema) return h('p.muted', {}, row.absent || 'The call has no schema.');
  const box = h('div', 'checking …');
  post('schemas/check', { schema }).then((found) => replace(box, ledger(found)), (error) => replace(box, error.message));
  return box;
}

const BY = { local: 'checked here', vendor: 'by the vendor' };

/** What each vendor's dialect makes of every keyword. */
export function ledger(found) {
  if (found.problems.length) return h('p.bad', {}, found.problems.map((each) => `${each.pointer} ${each.message}`).join('; '));
  const names = Object.keys(found.losses);
  const places = [...new Set(names.flatMap((name) => (found.losses[name].rows || []).map((each) => each.pointer)))];
  if (!places.length) return h('p.good', `✓ ${names.join(', ')} take all of it.`);
  return table(['keyword', ...names], places.map((place) => [field(place), ...names.map((name) => {
    if (found.losses[name].error) return h('span.bad', `✗ ${found.losses[name].error}`);
    const each = found.losses[name].rows.find((one) => one.pointer === place);
    return each ? [h('span', { class: each.action === 'dropped' ? 'warn' : '' }, each.action), h('span.label', ` · ${BY[each.by] || `by the ${each.by}`}`)] : h('span.muted', 'kept');
  })]), 'Dialect ledger');
}

function rejudgeView({ schema, trace, row }) {
  const texts = trace ? trace.texts.filter(Boolean) : [];
  if (!schema || !texts.length) return h('p.muted', {}, row.absent || 'There is no recorded answer to judge.');
  const editor = h('textarea', { value: JSON.stringify(schema, null, 2), 'aria-label': 'Schema to judge by', spellcheck: 'false', rows: '12' });
  editor.style.width = '100%';
  const out = h('div', { 'aria-live': 'polite' });
  const run = async () => {
    try {
      const found = await post('rejudge', { text: texts[texts.length - 1], schema: JSON.parse(editor.value) });
      replace(out, h('p', { class: found.ok ? 'good' : 'bad' }, found.ok ? '✓ valid today' : `✗ ${found.error}`), found.ok ? h('pre', {}, JSON.stringify(found.value, null, 2)) : null);
    } catch (error) { replace(out, h('p.bad', {}, error.message)); }
  };
  return [h('p.muted', 'The recorded answer, judged by this version of slipform and by any schema. No model is called.'), editor, h('p', h('button.main', { onclick: run }, 'Judge again')), out];
}

function timelineView({ row, attempts, trace }) {
  const whole = Math.max(1, row.ms);
  const bars = [];
  let at = 0;
  const errors = (trace?.report && trace.report.fallback_errors) || (row.detail?.fallbacks) || [];
  attempts.forEach((attempt, index) => {
    const took = (attempt.seconds || 0) * 1000;
    bars.push([`attempt ${index + 1}`, at, took, attempt.outcome === 'ok' ? '' : 'bad-bar', ms(attempt.seconds === undefined || attempt.seconds === null ? null : took)]);
    at += took;
  });
  bars.push(['first byte', 0, row.first_ms || 0, 'soft-bar', ms(row.first_ms)], ['slipform itself', 0, row.overhead_ms || 0, 'soft-bar', ms(row.overhead_ms)], ['total', 0, row.ms, '', ms(row.ms)]);
  return [h('div.gantt', {}, bars.map(([name, from, took, look, said]) => {
    const bar = h('i', { class: look });
    bar.style.left = `${Math.min(100, (100 * from) / whole)}%`;
    bar.style.width = `${Math.min(100 - Math.min(100, (100 * from) / whole), (100 * took) / whole)}%`;
    return h('div', h('span', {}, name), h('span.track', {}, bar), h('span.num', {}, said));
  })), errors.length ? [h('h3', 'Models that could not answer'), table(['model', 'why'], errors.map((each) => [each.model, `${each.code}${each.message ? `: ${each.message}` : ''}`]), 'Fallbacks')] : null];
}

function rawView({ row, trace }) {
  const rest = { ...row, trace: undefined, detail: undefined };
  return [h('h3', 'Figures'), h('pre', {}, JSON.stringify(rest, null, 2)),
    trace ? [['Request', trace.request], ['Response', trace.response]].map(([name, each]) => [h('h3', `${name} · ${bytes(each.bytes)}${each.cut ? `, of which the beginning and the end were kept` : ''}`), long(each.text, name)]) : h('p.muted', {}, row.absent || none)];
}

function draftOf({ body, schema, row }) {
  const turns = turnsOf(body);
  const said = (role) => turns.filter((each) => each[0] === role).map((each) => each[1]).join('\n');
  return { schema: schema ? JSON.stringify(schema, null, 2) : '', system: said('system'), prompt: said('user'), models: row.model ? [row.model] : [] };
}

