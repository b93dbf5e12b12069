// Keys: who may call, within which limits, what they have spent; operators create, change and revoke them here.
import { del, get, post, put } from './api.js';
import { ago, copy, count, h, head, money, none, replace, table } from './dom.js';

const PERIODS = ['', 'hour', 'day', 'week', 'month'];
const LIMITS = [['models', 'models, with commas', 'text'], ['requests_per_minute', 'calls per minute', 'number'], ['max_concurrent', 'calls at a time', 'number'], ['max_cost', 'budget, money', 'number'], ['max_tokens', 'budget, tokens', 'number'], ['expires', 'expires (30d, a date)', 'text']];

const spent = (key) => (key.spend ? `${money(key.spend.spent.cost)}${key.spend.limits.cost ? ` of ${money(key.spend.limits.cost)}` : ''} · ${count(key.spend.spent.tokens)}${key.spend.limits.tokens ? ` of ${count(key.spend.limits.tokens)}` : ''} tokens · ${count(key.spend.requests)} calls` : none);
const shown = (value) => (value === null || value === undefined ? '' : Array.isArray(value) ? value.join(', ') : String(value));

/** A form with the limits of a key; `send` is given what differs from `key`, if there is one. */
function limitsForm(key, title, send, ...more) {
  const fields = LIMITS.map(([name, label, type]) => [name, type, h('input', { type, name, value: key ? shown(key[name]) : '', min: type === 'number' ? '0' : null, step: name === 'max_cost' ? 'any' : null }), label]);
  const period = h('select', { name: 'period' }, PERIODS.map((each) => h('option', { value: each, selected: each === (key?.period || '') }, each || 'in all')));
  const note = h('p.bad', { role: 'alert' });
  const limits = () => {
    const read = fields.map(([name, type, input]) => [name, input.value.trim() === '' ? null : type === 'number' ? Number(input.value) : name === 'models' ? input.value.split(',').map((each) => each.trim()).filter(Boolean) : input.value.trim()]);
    return Object.fromEntries([...read, ['period', period.value]].filter(([name, value]) => shown(value) !== (key ? shown(key[name]) : '')));
  };
  const submit = async (event) => {
    event.preventDefault();
    try { await send(limits()); } catch (error) { replace(note, error.message); }
  };
  return h('form', { onsubmit: submit }, h('div.tools', {}, more, fields.map(([, , input, label]) => h('label.field', {}, label, input)), h('label.field', {}, 'budget per', period), h('button.main', {}, title)), note);
}

export async function keys(main, state) {
  const found = await get('keys');
  const me = await get('me');
  const box = h('div', { 'aria-live': 'polite' });
  const create = () => {
    const name = h('input', { name: 'name', required: true, maxlength: '100' });
    const operator = h('input', { type: 'checkbox', name: 'operator' });
    const send = async (limits) => {
      const made = await post('keys', { ...limits, name: name.value, operator: operator.checked });
      await state.refresh();
      const secret = h('pre', { id: 'secret', tabindex: '0', 'aria-label': 'The new key' }, made.secret);
      document.querySelector('main .stack').prepend(h('div.card', {}, h('h2', {}, `The key of ${made.name}`), h('p', 'Copy it now: it is not shown again.'), secret, h('button', { onclick: (event) => copy(made.secret, event.currentTarget) }, 'Copy')));
    };
    return limitsForm(null, 'Create', send, h('label.field', {}, 'name', name), h('label', {}, operator, ' operator'));
  };
  const edit = (key) => replace(box, h('section.card', {}, h('h2', {}, `Limits of ${key.name}`), limitsForm(key, 'Change', async (limits) => { await put(`keys/${key.id}`, limits); await state.refresh(); })));
  const act = (label, does) => h('button', { onclick: async () => { try { await does(); await state.refresh(); } catch (error) { replace(box, h('p.note.bad', { role: 'alert' }, error.message)); } } }, label);
  /** Revoking wants a second press. */
  const revoke = (key) => {
    const button = h('button', { onclick: () => { replace(button.parentNode, act(`Revoke ${key.name} for good`, () => del(`keys/${key.id}`))); } }, 'Revoke');
    return h('span', {}, button);
  };
  const actions = (key) => h('div.tools', {}, h('button', { onclick: () => edit(key) }, 'Change'), key.name === me.operator ? null : [act(key.disabled ? 'Enable' : 'Disable', () => put(`keys/${key.id}`, { disabled: !key.disabled })), revoke(key)]);
  const standing = (key) => (key.disabled ? h('span.pill.bad', 'disabled') : key.operator ? h('span.pill.note-c', 'operator') : h('span.pill.good', 'in use'));
  replace(main, head('Keys', 'Who may call, within which limits, and what they have spent.'), !me.keys
    ? h('div.card.empty', h('h2', 'No keys'), h('p', 'Anybody who reaches this server may call it. Name a key file in the settings (`server.keys_file`), and make the first key:'), h('pre', 'slipform keys add NAME --operator'))
    : h('div.stack', {}, h('section.card', {}, h('h2', 'New key'), create()), box, h('div.card.key-list', {}, table(['name', 'id', 'models', 'per minute', 'spent', 'last used', 'expires', 'state', 'change'], found.keys.map((key) => [key.name, h('code', {}, key.id), key.models ? key.models.join(', ') : 'all', key.requests_per_minute || none, spent(key), ago(key.last_used), key.expires || none, standing(key), actions(key)]), 'Keys'))));
  return {};
}
