// Try a schema and a prompt on any models side by side, streamed, several times if wanted, and stop them.
import { get, play, post } from './api.js';
import { count, h, head, icon, ms, money, none, replace } from './dom.js';
import { jsonEditor, placeOf, rangeOf } from './editor.js';
import { ledger } from './panels.js';
import { parsePartial, show } from './partial.js';
import { bodyOf, PROMPT, SCHEMA } from './sample.js';
import { tree } from './tree.js';

const FIRST = { schema: JSON.stringify(SCHEMA, null, 2), system: '', prompt: PROMPT, models: [] };
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
  const strategy = select(['auto', 'native', 'tool', 'json_mode', 'prompted']);
  const mode = select(['live', 'auto', 'buffer']);
  const attempts = h('input', { type: 'number', min: '1', max: '10', value: '3' });
  const repeats = h('input', { type: 'number', min: '1', max: String(RUNS), value: '1' });
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
    if (!valid || !chosen.length || running) return;
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
    const values = (await Promise.all(chosen.map(async (model, index) => {
      const found = [];
      for (let round = 0; round < times && !control.signal.aborted; round += 1) found.push(await one(model, schema, views[index], control.signal, times > 1 ? `${round + 1} of ${times} · ` : ''));
      return found;
    }))).flat();
    agree(values);
    running = null;
    run.disabled = !valid;
    stop.disabled = true;
    history.replaceState(null, '', `#${encodeURIComponent(JSON.stringify({ schema: editor.box.value, system: system.value, prompt: prompt.value, models: chosen }))}`);
  }

  function column(model, schema) {
    const status = h('p.label', { 'aria-live': 'polite' }, 'asking …');
    const box = h('div', {}, tree(schema, undefined));
    const title = h('div.who', h('h3', {}, model), h('span.pill.run', 'asking'));
    return { node: h('section.card.attempt', { 'data-model': model }, title, status, box), status, box, badge: title.lastElementChild };
  }

  async function one(model, schema, view, signal, round) {
    const began = performance.now();
    let text = '';
    let first = null;
    let id = '';
    let before = new Map();
    view.badge.className = 'pill run';
    replace(view.badge, `${round}asking`);
    const body = bodyOf({ model, schema, system: system.value, prompt: prompt.value, mode: mode.value, attempts: Number(attempts.value) || 3, strategy: strategy.value });
    let drawing = 0;
    const draw = () => { drawing = 0; const value = parsePartial(text); replace(view.box, tree(schema, value, { before })); before = value ?? new Map(); };
    try {
      const { report, usage } = await play(body, {
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
      const how = tries > 1 ? `retried ${tries - 1}×` : last && (last.repairs || last.patch) ? 'repaired' : 'first try';
      view.badge.className = `pill ${tries > 1 ? 'warn' : 'good'}`;
      replace(view.badge, `✓ valid, ${how}`);
      replace(view.status, `${round}first ${ms(first)} · ${ms(performance.now() - began)} · ${usage ? `${count(usage.prompt_tokens)} / ${count(usage.completion_tokens)} tokens` : none} · ${money(report?.cost)} `, id ? h('a', { href: `/console/r/${id}` }, 'see the pour') : null);
      const value = parsePartial(text);
      replace(view.box, tree(schema, value));
      return value;
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

  run.addEventListener('click', start);
  replace(main, head('Playground', 'A schema, a prompt, any models side by side. What you run here is kept for you to look at.'),
    h('div.play', h('section.card', h('h2', 'Schema'), editor.node, problems, details),
      h('section.card', h('h2', 'Prompt'), system, prompt, h('h2', 'Models'), picks, h('datalist', { id: 'models' }, known.models.map((name) => h('option', { value: name }))),
        h('div.tools', {}, field('strategy', strategy), field('stream', mode), field('attempts', attempts), field('runs', repeats)), h('div.tools', {}, run, stop, h('span.label', h('kbd', 'Ctrl'), ' ', h('kbd', 'Enter'), ' runs it')))), agreement, columns);
  drawPicks();
  await check();
  return { keys: { 'ctrl+Enter': start, 'meta+Enter': start }, close: () => { clearTimeout(timer); if (running) running.abort(); } };
}

const changed = (rows) => rows.filter((row) => row.action !== 'kept').length;
const field = (name, input) => h('label.field', {}, name, input);
const select = (values) => h('select', {}, values.map((each) => h('option', { value: each }, each)));

function fromHash() {
  try { return JSON.parse(decodeURIComponent(location.hash.slice(1))); } catch { return {}; }
}
