// The parts of a case in the playground: where its schema comes from, its turns with images and tool results, and the cases that this browser keeps.
import { ApiError, post } from './api.js';
import { h, icon, replace } from './dom.js';

const LARGEST_IMAGE = 4 * 1024 * 1024;
const MOST_IMAGES = 4;
const MOST_TURNS = 20;
const MOST_CASES = 20;
const LARGEST_CASE = 100000;
const KEPT = 'playground-cases';
const TYPES = ['string', 'integer', 'number', 'boolean', 'date', 'list of strings', 'list of numbers'];
const SHAPES = { date: { type: 'string', format: 'date' }, 'list of strings': { type: 'array', items: { type: 'string' } }, 'list of numbers': { type: 'array', items: { type: 'number' } } };

const select = (values, attributes, chosen) => h('select', attributes, values.map((each) => h('option', { value: each, selected: each === chosen }, each)));

/** Other ways to write a schema than as JSON: a line of fields, an example of the answer, a form. `use` is given the schema. */
export function schemaSource(use) {
  const note = h('p.bad', { role: 'alert' });
  const build = async (request) => {
    replace(note, '');
    try { use((await post('schemas/build', request)).schema); } catch (error) { if (!(error instanceof ApiError)) throw error; replace(note, error.message); }
  };
  const line = h('input.grow', { placeholder: 'name, age int, tags [str], nickname? str: what others say', 'aria-label': 'Fields of the schema', id: 'fields' });
  const example = h('textarea', { placeholder: '{"name": "Ada", "age": 36}', 'aria-label': 'An example of the answer', id: 'example' });
  const fromExample = () => {
    let value;
    try { value = JSON.parse(example.value); } catch (error) { replace(note, `The example is not JSON: ${error.message}`); return; }
    build({ example: value });
  };
  const rows = h('div');
  const addRow = () => rows.append(h('div.tools.form-row', {}, h('input', { placeholder: 'field', 'aria-label': 'Name of the field' }), select(TYPES, { 'aria-label': 'Type of the field' }), h('input.grow', { placeholder: 'description (optional)', 'aria-label': 'Description of the field' }),
    h('label', {}, h('input', { type: 'checkbox', checked: true }), ' required'), h('button', { 'aria-label': 'Remove the field', onclick: (event) => event.currentTarget.parentNode.remove() }, '×')));
  const fromForm = () => {
    const fields = [...rows.children].map((row) => { const [name, description, required] = row.querySelectorAll('input'); return { name: name.value.trim(), type: row.querySelector('select').value, description: description.value.trim(), required: required.checked }; }).filter((each) => each.name);
    if (!fields.length) { replace(note, 'Name a field first.'); return; }
    replace(note, '');
    const properties = Object.fromEntries(fields.map((each) => [each.name, { ...(SHAPES[each.type] || { type: each.type }), ...(each.description ? { description: each.description } : {}) }]));
    use({ type: 'object', properties, required: fields.filter((each) => each.required).map((each) => each.name), additionalProperties: false });
  };
  addRow();
  line.addEventListener('keydown', (event) => { if (event.key === 'Enter') { event.preventDefault(); build({ fields: line.value }); } });
  return h('details', {}, h('summary', 'Write it as fields, an example or a form'),
    h('div.tools', {}, line, h('button', { id: 'from-fields', onclick: () => build({ fields: line.value }) }, 'Use fields')),
    example, h('div.tools', {}, h('button', { id: 'from-example', onclick: fromExample }, 'Use example')),
    rows, h('div.tools', {}, h('button', { onclick: addRow }, 'Add a field'), h('button', { id: 'from-form', onclick: fromForm }, 'Use form')), note);
}

const readAsAddress = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});

/** The turns before the prompt, and the images beside it. A tool's result is a turn too, after the answer that asked for it. */
export function conversation(draft) {
  let turns = (draft.turns || []).slice(0, MOST_TURNS);
  let images = [];
  const box = h('div.turns');
  const files = h('span.label', { 'aria-live': 'polite' });
  const pick = h('input', { type: 'file', accept: 'image/*', multiple: true, 'aria-label': 'Images for the prompt', id: 'images' });
  pick.addEventListener('change', async () => {
    const chosen = [...pick.files].slice(0, MOST_IMAGES);
    const large = chosen.find((file) => file.size > LARGEST_IMAGE);
    images = large ? [] : await Promise.all(chosen.map(readAsAddress));
    replace(files, large ? `${large.name} is larger than 4 MB` : images.length ? chosen.map((file) => file.name).join(', ') : '');
  });
  const draw = () => replace(box, turns.map((turn, index) => h('div.turn', {},
    h('div.tools', {}, turn.role === 'tool' ? h('b', {}, `result of ${turn.name}`) : select(['user', 'assistant'], { 'aria-label': `Role of turn ${index + 1}`, onchange: (event) => { turn.role = event.target.value; } }, turn.role),
      turn.calls ? h('span.label', {}, `calls ${turn.calls.map((each) => each.function.name).join(', ')}`) : null, h('span.space'),
      h('button', { 'aria-label': `Remove turn ${index + 1} and those after it`, onclick: () => { turns = turns.slice(0, index); draw(); } }, '×')),
    h('textarea', { 'aria-label': `Text of turn ${index + 1}`, value: turn.text, oninput: (event) => { turn.text = event.target.value; } }))));
  const push = (...more) => { turns = [...turns, ...more].slice(-MOST_TURNS); draw(); };
  draw();
  const node = h('details', { open: turns.length > 0 }, h('summary', 'Earlier turns and images'), box,
    h('div.tools', {}, h('button', { id: 'add-turn', onclick: () => push({ role: 'user', text: '' }, { role: 'assistant', text: '' }) }, 'Add a question and its answer'), h('label.field', {}, 'images', pick), files));
  return {
    node,
    /** Continue with an answer: it becomes a turn, and each of its calls wants a result. */
    answer: (prompt, text, calls) => {
      push({ role: 'user', text: prompt }, { role: 'assistant', text, ...(calls.length ? { calls } : {}) }, ...calls.map((each) => ({ role: 'tool', text: '', id: each.id, name: each.function.name })));
      node.open = true;
    },
    turns: () => turns,
    messages: (prompt) => {
      const earlier = turns.map((turn) => (turn.role === 'tool' ? { role: 'tool', tool_call_id: turn.id, content: turn.text } : { role: turn.role, content: turn.text, ...(turn.calls ? { tool_calls: turn.calls } : {}) }));
      const content = images.length ? [{ type: 'text', text: prompt }, ...images.map((url) => ({ type: 'image_url', image_url: { url } }))] : prompt;
      return [...earlier, ...(prompt || images.length || !earlier.length ? [{ role: 'user', content }] : [])];
    },
  };
}

/** The tools of a text: a list of functions as OpenAI has them, or with name, description and parameters alone. */
export function toolsIn(text) {
  if (!text.trim()) return [];
  const given = JSON.parse(text);
  return (Array.isArray(given) ? given : [given]).map((tool) => {
    const named = tool.function || { name: tool.name, description: tool.description, parameters: tool.parameters || tool.input_schema };
    if (typeof named.name !== 'string' || !named.name) throw new Error('a tool has no name');
    return { type: 'function', function: named };
  });
}

const keptCases = () => { try { return JSON.parse(localStorage.getItem(KEPT)) || {}; } catch { return {}; } };

/** Cases that this browser keeps, by name: `current` gives the case on the page, `open` shows another. */
export function caseMenu(current, open) {
  const name = h('input', { placeholder: 'name of this case', 'aria-label': 'Name of this case', id: 'case-name', maxlength: '60' });
  const list = h('select', { 'aria-label': 'Saved cases', id: 'cases' });
  const note = h('span.label', { role: 'status' });
  const draw = () => { const names = Object.keys(keptCases()); replace(list, h('option', { value: '' }, names.length ? 'open a saved case' : 'no saved case'), names.map((each) => h('option', { value: each }, each))); };
  const keep = (cases, said) => {
    try { localStorage.setItem(KEPT, JSON.stringify(cases)); replace(note, said); } catch { replace(note, 'This browser has no room for it.'); }
    draw();
  };
  const save = () => {
    const title = name.value.trim();
    const cases = keptCases();
    if (!title) { replace(note, 'Name the case first.'); return; }
    if (!Object.hasOwn(cases, title) && Object.keys(cases).length >= MOST_CASES) { replace(note, `${MOST_CASES} cases are saved. Delete one first.`); return; }
    if (JSON.stringify(current()).length > LARGEST_CASE) { replace(note, 'The case is larger than 100 KB.'); return; }
    keep({ ...cases, [title]: current() }, 'Saved in this browser.');
  };
  const drop = () => { const cases = keptCases(); delete cases[name.value.trim()]; keep(cases, 'Deleted.'); };
  list.addEventListener('change', () => { const found = keptCases()[list.value]; if (found) open({ ...found, title: list.value }); });
  draw();
  return { node: h('div.tools', {}, list, name, h('button', { id: 'save-case', onclick: save }, icon('save'), 'Save'), h('button', { onclick: drop }, 'Delete'), note), name };
}
