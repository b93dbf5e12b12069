// Try a case on any models side by side: a schema, turns, images, tools; streamed, several times if wanted, stopped upstream.
import { get, play, post } from './api.js';
import { caseMenu, conversation, schemaSource, toolsIn } from './case.js';
import { count, h, head, icon, ms, money, none, replace } from './dom.js';
import { jsonEditor, placeOf, rangeOf } from './editor.js';
import { callsView, ledger } from './panels.js';
import { parsePartial, show } from './partial.js';
import { bodyOf, PROMPT, SCHEMA } from './sample.js';
import { tree } from './tree.js';

const FIRST = { schema: JSON.stringify(SCHEMA, null, 2), system: '', prompt: PROMPT, models: [], tools: '', temperature: '', limit: '', turns: [], title: '' };
const MOST = 8;
const RUNS = 20;

export async function playground(main, state) {
  const draft = { ...FIRST, ...(state.draft || fromHash()) };
  state.draft = null;
  const known = await get('models');
  const chosen = draft.models.length ? [...draft.models] : [known.default];
  let running = null;

  const editor = jsonEditor(draft.schema, { id: 'schema', 'aria-label': 'JSON Schema', 'aria-describedby': 'problems' });
  const system = h('input.grow', { value: draft.system, placeholder: 'System message (optional)', 'aria-label': 'System message' });
  const prompt = h('textarea', { id: 'prompt', class: 'words', value: draft.prompt, 'aria-label': 'Prompt' });
  const problems = h('div', { id: 'problems', 'aria-live': 'polite' });
  const details = h('details', h('summary', 'How each vendor handles this schema'), h('div'));
  const strategy = select(['auto', 'native', 'tool', 'prompted']);
  const mode = select(['live', 'auto', 'buffer']);
  const attempts = h('input', { type: 'number', min: '1', max: String(known.max_attempts), value: String(known.max_attempts) });
  const repeats = h('input', { type: 'number', min: '1', max: String(RUNS), value: '1' });
  const temperature = h('input', { type: 'number', min: '0', max: '2', step: '0.1', value: draft.temperature, placeholder: 'auto', id: 'temperature' });
  const limit = h('input', { type: 'number', min: '1', value: draft.limit, placeholder: 'auto', id: 'limit' });
  const turns = conversation(draft);
  const toolsBox = jsonEditor(draft.tools, { id: 'tools', 'aria-label': 'Tools as JSON', placeholder: '[{"name": "weather", "description": "…", "parameters": {"type": "object", …}}]' }, 'div.editor.small');
  const toolProblems = h('p.bad', { 'aria-live': 'polite' });
  const current = () => ({ schema: editor.box.value, system: system.value, prompt: prompt.value, models: chosen, tools: toolsBox.box.value, temperature: temperature.value, limit: limit.value, turns: turns.turns() });
  const cases = caseMenu(current, (found) => { state.draft = found; state.refresh(); });
  cases.name.value = draft.title;
  const picks = h('div.picks');
  const add = h('input', { list: 'models', placeholder: 'add a model', 'aria-label': 'Add a model' });
  const columns = h('div.columns');
  const run = h('button.main', { id: 'run' }, icon('play'), 'Run');
  const stop = h('button', { disabled: true, id: 'stop' }, icon('stop'), 'Stop');
  const agreement = h('p.label', { 'aria-live': 'polite' });

  function drawPicks() {
    replace(picks, chosen.map((model, index) => h('button', { title: 'remove', 'aria-label': `Remove ${model}`, onclick: () => { chosen.splice(index, 1); drawPicks(); } }, `${model} ×`)), chosen.length < MOST ? add : null);
  }
  add.addEventListener('change', () => {
    if (add.value && chosen.length < MOST && !chosen.includes(add.value)) chosen.push(add.value.slice(0, 256));
    add.value = '';
    drawPicks();
  });

  let timer = 0;
  let valid = null;
  async function check() {
    const text = editor.box.value;
    let schema;
    if (!text.trim()) {
      valid = null;
      run.disabled = Boolean(running);
      replace(problems, h('p.muted', 'No schema: the answer is text, or calls of the tools below.'));
      replace(details.lastElementChild, '');
      return;
    }
    try { schema = JSON.parse(text); } catch (error) {
      valid = null;
      run.disabled = true;
      editor.mark(placeOf(error.message, text));
      replace(problems, h('p.bad', `✗ not JSON yet: ${error.message}`));
      return;
    }
    const found = await post('schemas/check', { schema }).catch((error) => ({ problems: [{ pointer: '', message: error.message }], losses: {} }));
    if (editor.box.value !== text) return;
    valid = found.problems.length ? null : schema;
    run.disabled = !valid || Boolean(running);
    editor.mark(found.problems.length ? rangeOf(text, found.problems[0].pointer) : null);
    replace(problems, found.problems.length ? found.problems.map((each) => h('p.bad', '✗ ', each.pointer ? h('code', {}, each.pointer) : null, ` ${each.message}`))
      : h('div.takes', h('span.pill.good', '✓ a valid schema'), Object.entries(found.losses).map(([name, each]) => h('span', { class: `pill ${each.error ? 'bad' : ''}` }, `${name} ${each.error ? '✗' : changed(each.rows) ? `${changed(each.rows)} adapted` : '✓'}`))));
    replace(details.lastElementChild, valid ? ledger(found) : '');
  }
  editor.box.addEventListener('input', () => { clearTimeout(timer); timer = setTimeout(check, 250); });

  async function start() {
    if (!chosen.length || running) return;
    clearTimeout(timer);
    await check(); // of what was typed a moment ago
    if (run.disabled || running) return;
    let tools;
    try { tools = toolsIn(toolsBox.box.value); replace(toolProblems, ''); } catch (error) { replace(toolProblems, `✗ the tools cannot be read: ${error.message}`); toolProblems.scrollIntoView({ block: 'center' }); return; }
    const control = new AbortController();
    running = control;
    run.disabled = true;
    stop.disabled = false;
    stop.onclick = () => control.abort();
    replace(agreement, '');
    const times = Math.max(1, Math.min(RUNS, Number(repeats.value) || 1));
    const schema = valid;
    const views = chosen.map((model) => column(model, schema));
    replace(columns, views.map((view) => view.node));
    columns.scrollIntoView({ block: 'nearest' });
    const rounds = await Promise.all(chosen.map(async (model, index) => {
      const found = [];
      for (let round = 0; round < times && !control.signal.aborted; round += 1) found.push(await one(model, { schema, tools }, views[index], control.signal, times > 1 ? `${round + 1} of ${times} · ` : ''));
      return found;
    }));
    agree(rounds.flat());
    const last = rounds.map((found) => found.at(-1));
    const differ = differing(last.filter((value) => value instanceof Map));
    views.forEach((view, index) => { if (differ.size && last[index] instanceof Map) replace(view.box, tree(schema, last[index], { marks: differ })); });
    running = null;
    run.disabled = !valid && Boolean(editor.box.value.trim());
    stop.disabled = true;
    history.replaceState(null, '', `#${encodeURIComponent(JSON.stringify(current()))}`);
  }

  function column(model, schema) {
    const status = h('p.label', { 'aria-live': 'polite' }, 'asking …');
    const box = h('div', {}, schema ? tree(schema, undefined) : null);
    const title = h('div.who', h('h3', {}, model), h('span.pill.run', 'asking'));
    return { node: h('section.card.attempt', { 'data-model': model }, title, status, box), status, box, badge: title.lastElementChild };
  }

  async function one(model, { schema, tools }, view, signal, round) {
    const began = performance.now();
    let text = '';
    let first = null;
    let id = '';
    let before = new Map();
    view.badge.className = 'pill run';
    replace(view.badge, `${round}asking`);
    const body = bodyOf({ model, schema, system: system.value, messages: turns.messages(prompt.value), tools, temperature: asNumber(temperature), limit: asNumber(limit), mode: mode.value, attempts: Number(attempts.value) || known.max_attempts, strategy: strategy.value });
    let drawing = 0;
    const plain = () => h('pre.pour', { tabindex: '0', 'aria-label': `The answer of ${model}` }, text);
    const draw = () => { drawing = 0; if (!schema) { replace(view.box, plain()); return; } const value = parsePartial(text); replace(view.box, tree(schema, value, { before })); before = value ?? new Map(); };
    try {
      const { report, usage, calls } = await play(body, {
        signal, onHeaders: (headers) => { id = headers.get('x-slipform-call') || ''; },
        onText: (piece) => {
          first ??= performance.now() - began;
          text += piece;
          drawing ||= requestAnimationFrame(draw);
          replace(view.badge, `${round}pouring`);
          replace(view.status, `${count(text.length)} characters`);
        },
      });
      cancelAnimationFrame(drawing);
      const tries = report ? report.attempts.length : 1;
      const last = report?.attempts[tries - 1];
      const late = tries > 1 ? `retried ${tries - 1}×` : report?.fallbacks ? 'by another model' : report?.notes?.some((each) => each.code === 'vendor_retried') ? 'after a wait' : '';
      const how = late || (last && (last.repairs || last.patch) ? 'repaired' : 'first try');
      view.badge.className = `pill ${late ? 'warn' : 'good'}`;
      replace(view.badge, report ? `✓ valid, ${how}` : '✓ done');
      replace(view.status, `${round}first ${ms(first)} · ${ms(performance.now() - began)} · ${usage ? `${count(usage.prompt_tokens)} / ${count(usage.completion_tokens)} tokens` : none} · ${money(report?.cost)} `, id ? h('a', { href: `/console/r/${id}` }, 'see the pour') : null);
      const value = schema && !calls.length ? parsePartial(text) : undefined;
      const goOn = h('button', { onclick: () => { turns.answer(prompt.value, text, calls); prompt.value = ''; turns.node.scrollIntoView({ block: 'center' }); } }, calls.length ? 'Give the results of its calls' : 'Continue from here');
      replace(view.box, value === undefined ? text && plain() : tree(schema, value), callsView(calls.map((each) => ({ name: each.function.name, args: each.function.arguments, id: each.id })), report ? calls.map((each) => ({ id: each.id })) : null), h('p', {}, goOn));
      return value ?? text;
    } catch (error) {
      cancelAnimationFrame(drawing);
      view.badge.className = 'pill bad';
      replace(view.badge, signal.aborted ? '✗ stopped' : '✗ failed');
      replace(view.status, signal.aborted ? '' : h('span.bad', {}, error.message), ' ', id ? h('a', { href: `/console/r/${id}` }, 'see why') : null);
      return undefined;
    }
  }

  function agree(values) {
    const maps = values.filter((value) => value instanceof Map);
    if (maps.length < 2) return;
    const names = [...new Set(maps.flatMap((each) => [...each.keys()]))];
    const differ = names.filter((name) => new Set(maps.map((each) => show(each.get(name)))).size > 1);
    replace(agreement, `Agreement: ${names.length - differ.length} of ${names.length} fields${differ.length ? `; they differ in ${differ.join(', ')}` : ''}`);
  }

  const source = schemaSource((schema) => { editor.box.value = JSON.stringify(schema, null, 2); editor.box.dispatchEvent(new Event('input')); });
  run.addEventListener('click', start);
  replace(main, head('Playground', 'A schema, a prompt, tools, any models side by side. What you run here is kept for you to look at.'), cases.node,
    h('div.play', h('section.card', h('h2', 'Schema'), editor.node, problems, source, details, h('details', { open: Boolean(draft.tools) }, h('summary', 'Tools'), toolsBox.node, toolProblems)),
      h('section.card', h('h2', 'Prompt'), system, turns.node, prompt, h('h2', 'Models'), picks, h('datalist', { id: 'models' }, known.models.map((name) => h('option', { value: name }))),
        h('div.tools', {}, field('strategy', strategy), field('stream', mode), field('attempts', attempts), field('runs', repeats), field('temperature', temperature), field('max tokens', limit)), h('div.tools', {}, run, stop, h('span.label', h('kbd', 'Ctrl'), ' ', h('kbd', 'Enter'), ' runs it')))), agreement, columns);
  drawPicks();
  await check();
  return { keys: { 'ctrl+Enter': start, 'meta+Enter': start }, close: () => { clearTimeout(timer); if (running) running.abort(); } };
}

const asNumber = (input) => (input.value === '' ? null : Number(input.value));

/** The fields, by JSON path, in which some answers differ. */
function differing(values) {
  const marks = new Map();
  if (values.length < 2) return marks;
  const places = values.map((value) => new Map(leaves(value, '$')));
  for (const path of new Set(places.flatMap((each) => [...each.keys()]))) if (new Set(places.map((each) => each.get(path))).size > 1) marks.set(path, 'differs');
  return marks;
}

function leaves(value, path) {
  if (value instanceof Map) return [...value].flatMap(([key, each]) => leaves(each, `${path}.${key}`));
  if (Array.isArray(value)) return value.flatMap((each, index) => leaves(each, `${path}[${index}]`));
  return [[path, show(value)]];
}

const changed = (rows) => rows.filter((row) => row.action !== 'kept').length;
const field = (name, input) => h('label.field', {}, name, input);
const select = (values) => h('select', {}, values.map((each) => h('option', { value: each }, each)));

function fromHash() {
  try { return JSON.parse(decodeURIComponent(location.hash.slice(1))); } catch { return {}; }
}
