// Try a schema and a prompt on any models side by side, streamed, and stop them.
import { get, play, post } from './api.js';
import { count, h, ms, none, replace, visible } from './dom.js';
import { parsePartial, show } from './partial.js';
import { ledger } from './request.js';
import { tree } from './tree.js';

const FIRST = {
  schema: JSON.stringify({ type: 'object', properties: { name: { type: 'string' }, age: { type: 'integer', minimum: 0, maximum: 150 }, skills: { type: 'array', items: { type: 'string' }, maxItems: 3 } }, required: ['name', 'age', 'skills'], additionalProperties: false }, null, 2),
  system: '', prompt: 'Ada Lovelace, 36, wrote the first program and loved mathematics and poetry.', models: [],
};
const MOST = 8;

export async function playground(main, state) {
  const draft = { ...FIRST, ...(state.draft || fromHash()) };
  state.draft = null;
  const known = await get('models');
  const chosen = draft.models.length ? [...draft.models] : [known.default];
  let running = [];

  const editor = h('textarea', { id: 'schema', value: draft.schema, spellcheck: 'false', 'aria-label': 'JSON Schema', 'aria-describedby': 'problems' });
  const system = h('input', { class: 'grow', value: draft.system, placeholder: 'system message', 'aria-label': 'System message' });
  const prompt = h('textarea', { id: 'prompt', value: draft.prompt, 'aria-label': 'Prompt' });
  const problems = h('div', { id: 'problems', 'aria-live': 'polite' });
  const details = h('details', {}, h('summary', {}, 'What each vendor takes'), h('div', {}));
  const strategy = select('Strategy', ['auto', 'native', 'tool', 'json_mode', 'prompted']);
  const mode = select('Stream', ['live', 'auto', 'buffer']);
  const attempts = h('input', { type: 'number', min: '1', max: '10', value: '3', 'aria-label': 'Attempts', title: 'Attempts' });
  const picks = h('span', {});
  const add = h('input', { list: 'models', placeholder: 'add a model', 'aria-label': 'Add a model' });
  const columns = h('div', { class: 'columns' });
  const run = h('button', { class: 'main', id: 'run' }, 'Run');
  const stop = h('button', { disabled: true }, 'Stop');
  const agreement = h('p', { class: 'label', 'aria-live': 'polite' });

  function drawPicks() {
    replace(picks, chosen.map((model, index) => h('button', { title: 'remove', 'aria-label': `Remove ${model}`, onclick: () => { chosen.splice(index, 1); drawPicks(); } }, `${model} ×`)));
  }
  add.addEventListener('change', () => {
    if (add.value && chosen.length < MOST && !chosen.includes(add.value)) chosen.push(add.value.slice(0, 256));
    add.value = '';
    drawPicks();
  });

  let timer = 0;
  let valid = null;
  async function check() {
    let schema;
    try { schema = JSON.parse(editor.value); } catch (error) {
      valid = null;
      run.disabled = true;
      replace(problems, h('p', { class: 'bad' }, `✗ not JSON: ${error.message}`));
      return;
    }
    const found = await post('schemas/check', { schema });
    valid = found.problems.length ? null : schema;
    run.disabled = !valid;
    replace(problems, found.problems.length ? h('p', { class: 'bad' }, found.problems.map((each) => `✗ ${each.pointer} ${each.message}`))
      : h('p', { class: 'good' }, '✓ a valid schema', Object.entries(found.losses).map(([name, each]) => ` · ${name} ${each.error ? '✗' : each.rows.length ? `${each.rows.length} changed` : '✓'}`)));
    replace(details.lastElementChild, valid ? ledger(found) : '');
  }
  editor.addEventListener('input', () => { clearTimeout(timer); timer = setTimeout(check, 250); });

  async function start() {
    if (!valid || !chosen.length) return;
    run.disabled = true;
    stop.disabled = false;
    replace(agreement, '');
    const control = new AbortController();
    running = [control];
    stop.onclick = () => control.abort();
    const views = chosen.map((model) => column(model));
    replace(columns, views.map((view) => view.node));
    const messages = [...(system.value ? [{ role: 'system', content: system.value }] : []), { role: 'user', content: prompt.value }];
    const values = await Promise.all(chosen.map((model, index) => one(model, messages, views[index], control.signal)));
    agree(chosen, values);
    run.disabled = false;
    stop.disabled = true;
    history.replaceState(null, '', `#${encodeURIComponent(JSON.stringify({ schema: editor.value, system: system.value, prompt: prompt.value, models: chosen }))}`);
  }

  function column(model) {
    const status = h('p', { class: 'label', 'aria-live': 'polite' }, 'asking …');
    const box = h('div', {}, tree(valid, undefined));
    return { node: h('section', { class: 'card', 'data-model': model }, h('h3', {}, model), status, box), status, box };
  }

  async function one(model, messages, view, signal) {
    const began = performance.now();
    let text = '';
    let first = null;
    let id = '';
    try {
      const { report, usage } = await play({
        model, messages, stream: true, stream_options: { include_usage: true },
        response_format: { type: 'json_schema', json_schema: { name: valid.title ? String(valid.title).replace(/\W/g, '_').slice(0, 60) : 'playground', schema: valid } },
        slipform: { report: true, stream_mode: mode.value, max_attempts: Number(attempts.value) || 3, ...(strategy.value === 'auto' ? {} : { strategy: strategy.value }) },
      }, {
        signal, onHeaders: (headers) => { id = headers.get('x-slipform-call') || ''; },
        onText: (piece) => {
          first ??= performance.now() - began;
          text += piece;
          replace(view.box, tree(valid, parsePartial(text)));
          replace(view.status, `pouring … ${text.length} characters`);
        },
      });
      const tries = report ? report.attempts.length : 1;
      const last = report && report.attempts[tries - 1];
      const how = tries > 1 ? `retried ${tries - 1}×` : last && (last.repairs || last.patch) ? 'repaired' : 'first try';
      replace(view.status, h('span', { class: 'good' }, `✓ valid, ${how}`), ` · first ${ms(first)} · ${ms(performance.now() - began)} · ${usage ? `${count(usage.prompt_tokens)}/${count(usage.completion_tokens)} tokens` : none} `, id ? h('a', { href: `/console/r/${id}` }, 'see the pour') : null);
      replace(view.box, tree(valid, parsePartial(text)));
      return parsePartial(text);
    } catch (error) {
      replace(view.status, h('span', { class: 'bad' }, signal.aborted ? '✗ stopped' : `✗ ${visible(error.message)}`), ' ', id ? h('a', { href: `/console/r/${id}` }, 'see why') : null);
      return undefined;
    }
  }

  function agree(models, values) {
    const maps = values.filter((value) => value instanceof Map);
    if (maps.length < 2) return;
    const names = [...new Set(maps.flatMap((each) => [...each.keys()]))];
    const differ = names.filter((name) => new Set(maps.map((each) => show(each.get(name)))).size > 1);
    replace(agreement, `Agreement: ${names.length - differ.length} of ${names.length} fields${differ.length ? `; they differ in ${differ.join(', ')}` : ''}`);
  }

  run.addEventListener('click', start);
  replace(main, h('h1', {}, 'Playground'),
    h('div', { class: 'play' }, h('section', { class: 'card' }, h('h2', {}, 'Schema'), editor, problems, details),
      h('section', { class: 'card' }, h('h2', {}, 'Prompt'), h('div', { class: 'row-tools' }, system), prompt,
        h('div', { class: 'row-tools' }, picks, add, h('datalist', { id: 'models' }, known.models.map((name) => h('option', { value: name })))),
        h('div', { class: 'row-tools' }, strategy, mode, attempts, run, stop))), agreement, columns);
  drawPicks();
  await check();
  return { keys: { 'ctrl+Enter': start, 'meta+Enter': start }, close: () => { clearTimeout(timer); running.forEach((each) => each.abort()); } };
}

function select(label, values) {
  return h('select', { 'aria-label': label, title: label }, values.map((each) => h('option', { value: each }, each)));
}

function fromHash() {
  try { return JSON.parse(decodeURIComponent(location.hash.slice(1))); } catch { return {}; }
}
