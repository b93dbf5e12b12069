// One call: its answer being poured, its attempts side by side, what was repaired, patched and lost, and how to repeat it.
import { get, post } from './api.js';
import * as code from './code.js';
import { clock, copy, count, download, h, money, ms, none, replace, stage, table, visible } from './dom.js';
import { parsePartial, toMaps } from './partial.js';
import { legend, player, ribbon, states } from './pour.js';
import { tree } from './tree.js';

export async function request(main, state, id) {
  let row;
  try {
    row = state.imported && state.imported.id === id ? state.imported : await get(`requests/${encodeURIComponent(id)}`);
  } catch (error) {
    replace(main, h('h1', {}, 'Call'), h('p', { class: 'card' }, error.message));
    return {};
  }
  const trace = row.trace;
  const body = parsed(trace && trace.request.text);
  const schema = schemaOf(body);
  const report = trace && trace.report;
  const attempts = (report && report.attempts) || (row.detail && row.detail.attempts) || [];
  const answer = finalText(trace, row);
  const marks = marksOf(attempts);

  const treeBox = h('div', {});
  const pourBox = h('div', {});
  const fillTree = (text, whole) => {
    const value = text ? parsePartial(text) : undefined;
    replace(treeBox, schema ? tree(schema, value, whole ? marks : new Map()) : h('p', { class: 'muted' }, row.schema ? `Schema ${row.schema}: ${row.absent || 'not recorded'}` : 'This call has no schema.'));
  };
  const list = trace && trace.pour.length ? states(trace.pour, attempts) : [];
  let play = null;
  if (list.length) {
    const show = (current) => {
      const isLast = current === list[list.length - 1];
      fillTree(isLast && answer ? answer : current.total, isLast);
      const attempt = attempts[current.attempt - 1] || {};
      const ended = isLastOf(list, current);
      const fault = ended && attempt.stream && attempt.stream.fault ? attempt.stream.fault.at : null;
      replace(pourBox, h('h3', {}, `Attempt ${current.attempt}`, ended ? ` · ${attempt.outcome || ''}` : ''), ribbon(current, fault), legend());
    };
    play = player(list, show);
  } else {
    fillTree(answer, true);
    replace(pourBox, h('p', { class: 'muted' }, row.absent || (trace ? 'The answer came whole: there are no pieces to replay.' : 'Nothing was recorded.')), answer ? h('pre', { class: 'pour', tabindex: '0', 'aria-label': 'The answer' }, visible(answer)) : null);
  }

  const tabs = [['Attempts', () => attemptsView(attempts, trace, row)], ['Repairs', () => repairsView(attempts, trace)], ['Dialect', () => dialectView(schema)], ['Re-judge', () => rejudgeView(schema, trace)],
    ['Timeline', () => timelineView(row, attempts)], ['Raw', () => rawView(row, trace)]];
  const tabBox = h('div', { role: 'tabpanel', class: 'card' });
  const buttons = tabs.map(([name, view], index) => h('button', { role: 'tab', 'aria-selected': String(index === 0), onclick: () => choose(index) }, name));
  const choose = (index) => {
    buttons.forEach((button, at) => button.setAttribute('aria-selected', String(at === index)));
    replace(tabBox, tabs[index][1]());
  };
  const isChat = row.api === 'openai-chat' && body;
  const copies = [['curl', body && (() => code.curl(body, row.api, location.origin))], ['Python', isChat && (() => code.pythonOpenAI(body, location.origin))],
    ['TypeScript', isChat && (() => code.typescript(body, location.origin))], ['pytest', schema && trace && trace.texts.some(Boolean) && (() => code.pytest(trace.texts, schema))]].filter(([, make]) => make);
  replace(main, h('h1', {}, h('span', { class: 'mono' }, row.id.slice(0, 8)), ' ', stage(row)),
    h('div', { class: 'row-tools' }, [row.status, row.outcome, `${row.provider || none}/${row.upstream_model || row.model}`, row.strategy, row.stream ? 'streamed' : 'whole', clock(row.at), ms(row.ms), `${count(row.input)}/${count(row.output)} tokens`, money(row.cost), row.caller].filter((each) => each && each !== none).map((each) => h('span', { class: 'tag' }, each))),
    h('div', { class: 'row-tools' }, copies.map(([name, make]) => h('button', { class: 'copy', 'data-kind': name, onclick: (event) => copy(make(), event.target) }, `copy as ${name}`)),
      body ? h('button', { onclick: () => { state.draft = draftOf(body, schema); state.go('/console/playground'); } }, 'open in playground') : null,
      h('button', { onclick: () => download('call.slipform.json', JSON.stringify({ slipform: 1, call: row }, null, 1)) }, 'export')),
    row.absent ? h('p', { class: 'banner' }, row.absent) : null,
    h('div', { class: 'split' }, h('section', { class: 'card', 'aria-label': 'Answer by schema' }, h('h2', {}, 'Answer'), treeBox),
      h('section', { class: 'card', 'aria-label': 'The pour' }, h('h2', {}, 'The pour'), play ? play.node : null, pourBox)),
    h('div', { class: 'tabs', role: 'tablist' }, buttons), tabBox);
  choose(0);
  return play ? { keys: { ' ': play.toggle, ArrowLeft: () => play.by(-1), ArrowRight: () => play.by(1) }, close: play.stop } : {};
}

const isLastOf = (list, current) => {
  const at = list.indexOf(current);
  return at === list.length - 1 || list[at + 1].attempt !== current.attempt;
};

function parsed(text) {
  try { return JSON.parse(text); } catch { return null; }
}

/** The schema of a request in any of the four APIs. */
export function schemaOf(body) {
  if (!body) return null;
  const format = body.response_format;
  if (format && format.json_schema) return format.json_schema.schema || null;
  if (format && format.schema) return format.schema;
  const text = body.text && body.text.format;
  if (text && text.schema) return text.schema;
  const output = body.output_config && body.output_config.format;
  if (output && output.schema) return output.schema;
  const config = body.generationConfig || {};
  return config.responseJsonSchema || config.responseSchema || null;
}

function finalText(trace, row) {
  if (!trace || row.outcome !== 'ok') return null;
  const poured = trace.pour.map((each) => each[3]).join('');
  const whole = parsed(trace.response.text);
  if (whole) {
    const choice = whole.choices && whole.choices[0];
    if (choice && choice.message) return choice.message.content;
    const block = (whole.content || []).find && (whole.content || []).find((each) => each.type === 'text');
    if (block) return block.text;
    const part = whole.candidates && whole.candidates[0] && whole.candidates[0].content && whole.candidates[0].content.parts.find((each) => each.text);
    if (part) return part.text;
    for (const item of whole.output || []) for (const each of item.content || []) if (each.text) return each.text;
  }
  return poured || null;
}

function marksOf(attempts) {
  const marks = new Map();
  const last = attempts[attempts.length - 1] || {};
  for (const each of last.patch || []) marks.set(`$${each.path.split('/').slice(1).map((step) => (/^\d+$/.test(step) ? `[${step}]` : `.${step.replaceAll('~1', '/').replaceAll('~0', '~')}`)).join('')}`, 'patched');
  for (const each of last.violations || []) if (each.path) marks.set(each.path, 'violated');
  return marks;
}

function attemptsView(attempts, trace, row) {
  if (!attempts.length && row.attempts) return h('p', { class: 'good' }, '✓ One attempt, valid as it came.');
  if (!attempts.length) return h('p', { class: 'muted' }, 'Nothing was enforced: the call went through as it was.');
  return h('div', { class: 'attempts' }, attempts.map((attempt, index) => h('section', { class: 'card' },
    h('h3', {}, `Attempt ${index + 1} · `, h('span', { class: attempt.outcome === 'ok' ? 'good' : 'bad' }, attempt.outcome)),
    h('p', { class: 'label' }, [attempt.model, attempt.strategy, attempt.seconds !== undefined && attempt.seconds !== null ? ms(attempt.seconds * 1000) : null, money(attempt.cost)].filter((each) => each && each !== none).join(' · ')),
    attempt.asked ? [h('p', { class: 'label' }, 'asked'), h('pre', {}, visible(attempt.asked))] : null,
    (attempt.violations || []).length ? h('ul', {}, attempt.violations.map((each) => h('li', {}, each.message ? `${each.path} ${each.message}` : `${each.keyword} at ${each.schema_path} ×${each.count}`))) : null,
    trace && trace.texts[index] ? h('pre', { class: 'pour', tabindex: '0', 'aria-label': `What the model wrote in attempt ${index + 1}` }, visible(trace.texts[index])) : null)));
}

/** The text with its edits in place: what was taken out, what was put in, guesses marked. */
export function diff(text, edits) {
  const nodes = [];
  let at = 0;
  for (const edit of [...edits].sort((a, b) => a.position - b.position)) {
    if (edit.position < at) continue;
    nodes.push(h('span', {}, visible(text.slice(at, edit.position))));
    const look = edit.certain === false ? 'guess' : '';
    if (edit.before) nodes.push(h('del', { class: look, title: edit.kind }, visible(edit.before)));
    if (edit.after) nodes.push(h('ins', { class: look, title: edit.kind }, visible(edit.after)));
    at = edit.position + edit.before.length;
  }
  nodes.push(h('span', {}, visible(text.slice(at))));
  return h('pre', { class: 'diff' }, nodes);
}

function repairsView(attempts, trace) {
  const found = attempts.map((attempt, index) => {
    const repairs = attempt.repairs || [];
    const patches = attempt.patch || attempt.patches || [];
    if (!repairs.length && !patches.length) return null;
    const text = trace && trace.texts[index];
    return h('section', {}, h('h3', {}, `Attempt ${index + 1}`),
      text && repairs.length && repairs[0].position !== undefined ? diff(text, repairs) : null,
      repairs.length ? table(['repair', 'sure'], repairs.map((each) => [`${each.kind}${each.count > 1 ? ` ×${each.count}` : ''}`, each.certain === false ? 'a guess' : 'certain']), 'Repairs') : null,
      patches.length ? table(['patch', 'where', 'why', 'risk'], patches.map((each) => [each.op, each.path || none, each.reason, each.risk]), 'Patches') : null);
  }).filter(Boolean);
  return found.length ? found : h('p', { class: 'muted' }, 'Nothing had to be repaired or patched.');
}

function dialectView(schema) {
  if (!schema) return h('p', { class: 'muted' }, 'The schema was not recorded.');
  const box = h('div', {}, 'checking …');
  post('schemas/check', { schema }).then((found) => replace(box, ledger(found)), (error) => replace(box, error.message));
  return box;
}

/** What each vendor's dialect makes of every keyword. */
export function ledger(found) {
  if (found.problems.length) return h('p', { class: 'bad' }, found.problems.map((each) => `${each.pointer} ${each.message}`).join('; '));
  const names = Object.keys(found.losses);
  const places = [...new Set(names.flatMap((name) => (found.losses[name].rows || []).map((each) => each.pointer)))];
  if (!places.length) return h('p', { class: 'good' }, `✓ ${names.join(', ')} take all of it.`);
  return table(['keyword', ...names], places.map((place) => [h('code', {}, place || '/'), ...names.map((name) => {
    if (found.losses[name].error) return h('span', { class: 'bad' }, `✗ ${found.losses[name].error}`);
    const each = found.losses[name].rows.find((one) => one.pointer === place);
    return each ? `${each.action} · ${each.by === 'local' ? 'checked by slipform' : `by the ${each.by}`}` : 'kept';
  })]), 'Dialect ledger');
}

function rejudgeView(schema, trace) {
  const texts = trace ? trace.texts.filter(Boolean) : [];
  if (!schema || !texts.length) return h('p', { class: 'muted' }, 'The words of this call were not recorded.');
  const editor = h('textarea', { value: JSON.stringify(schema, null, 2), 'aria-label': 'Schema to judge by', spellcheck: 'false' });
  const out = h('div', { 'aria-live': 'polite' });
  const run = async () => {
    try {
      const found = await post('rejudge', { text: texts[texts.length - 1], schema: JSON.parse(editor.value) });
      replace(out, h('p', { class: found.ok ? 'good' : 'bad' }, found.ok ? '✓ valid today' : `✗ ${found.error}`), found.ok ? h('pre', {}, visible(JSON.stringify(found.value, null, 2))) : null);
    } catch (error) { replace(out, h('p', { class: 'bad' }, error.message)); }
  };
  return [h('p', { class: 'muted' }, 'The recorded answer, judged by this version of slipform and by any schema. No model is called.'), editor, h('p', {}, h('button', { class: 'main', onclick: run }, 'judge again')), out];
}

function timelineView(row, attempts) {
  const steps = [['first byte', ms(row.first_ms)], ...attempts.map((attempt, index) => [`attempt ${index + 1}`, attempt.seconds === undefined || attempt.seconds === null ? none : ms(attempt.seconds * 1000)]),
    ['slipform itself', ms(row.overhead_ms)], ['total', ms(row.ms)], ['fallbacks', count(row.fallbacks)], ['cached', row.cached ? 'yes' : 'no']];
  return table(['step', 'took'], steps, 'Timeline');
}

function rawView(row, trace) {
  const rest = { ...row, trace: undefined, detail: undefined };
  return [h('h3', {}, 'Figures'), h('pre', {}, visible(JSON.stringify(rest, null, 2))),
    trace ? [['Request', trace.request], ['Response', trace.response]].map(([name, each]) => [h('h3', {}, `${name} · ${count(each.bytes)} bytes${each.cut ? ', cut here' : ''}`), h('pre', { class: 'pour', tabindex: '0', 'aria-label': name }, visible(each.text))]) : null];
}

function draftOf(body, schema) {
  const messages = body.messages || [];
  const text = (message) => (typeof message.content === 'string' ? message.content : (message.content || []).map((part) => part.text || '').join(''));
  return { schema: schema ? JSON.stringify(schema, null, 2) : '', system: messages.filter((each) => each.role === 'system').map(text).join('\n'), prompt: messages.filter((each) => each.role === 'user').map(text).join('\n'), models: body.model ? [body.model] : [] };
}

export { toMaps };
