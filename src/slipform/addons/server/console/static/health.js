// Schemas and their weak fields, one schema with all that is known of it; providers, how they do, what was learnt of them.
import { del, get, post } from './api.js';
import { keyOf } from './chart.js';
import { bytes, count, h, head, icon, money, ms, none, percent, replace, table, width } from './dom.js';
import { field, heat, NAMES, STAGES, to } from './pages.js';
import { ledger } from './panels.js';
import { parsed, schemaOf } from './trace.js';
import { tree } from './tree.js';

const MONTH = 2592000;
const at = (name) => `/console/schemas/${encodeURIComponent(name)}`;
const models = (by) => Object.entries(by).map(([model, number]) => `${model || 'no model'} ×${count(number)}`).join(', ');

function stages(each) {
  const known = NAMES.filter(([name]) => each.stages[name]);
  return [h('div.stages', { role: 'img', 'aria-label': known.map(([name, said]) => `${said} ${each.stages[name]}`).join(', ') }, STAGES.filter((name) => each.stages[name]).map((name) => width(h('i', { class: name }), each.stages[name] / each.calls))),
    keyOf(known.map(([name, said]) => [name, `${said} ${count(each.stages[name])}`]))];
}

export async function schemas(main, state, name) {
  if (name) return schema(main, state, name);
  const found = await get(`schemas?window=${MONTH}`);
  const unseen = found.named.filter((each) => !found.schemas.some((one) => one.schema === each));
  replace(main, head('Schemas', 'Which shapes are asked for, and which of their fields models get wrong: the description to rewrite, the model to change.'),
    found.schemas.length ? h('div.cards', {}, found.schemas.map((each) => h('section.card', h('h2', h('a', { href: at(each.schema) }, each.schema), h('a.count', { href: to(`schema:${each.schema}`) }, `${count(each.calls)} calls`)),
      stages(each), h('p.label', {}, models(each.models)),
      each.fields.length ? h('div.heat', {}, each.fields.slice(0, 5).map((one) => heat(field(one.schema_path), one.count, each.calls))) : h('p.good', '✓ no field was violated'))))
      : h('div.card.empty', h('h2', 'No call with a schema yet'), h('p', 'As soon as a call asks for a shape, its fields and their health appear here.'), h('a.button', { href: '/console/playground' }, 'Open the playground')),
    unseen.length ? h('p.meta', h('span.label', 'Named, not asked for yet:'), unseen.map((each) => h('a.chip', { href: at(each) }, each))) : null);
  return {};
}

/** The schema itself: a named one, or that of the newest call whose words are kept. */
async function documentOf(found, health) {
  if (found.document) return found.document;
  const call = health?.call ? await get(`requests/${health.call}`).catch(() => null) : null;
  return call?.trace ? schemaOf(parsed(call.trace.request.text)) : null;
}

async function schema(main, state, name) {
  const found = await get(`schemas/${encodeURIComponent(name)}?window=${MONTH}`);
  const [health] = found.schemas;
  const document = await documentOf(found, health);
  if (!health && !document) {
    replace(main, h('div.card.empty', h('h1', 'This schema is not here'), h('p', 'No call of the last 30 days asked for it, and the settings do not name it.'), h('a.button', { href: '/console/schemas' }, 'To the schemas')));
    return {};
  }
  const fields = health ? health.fields : [];
  const checked = document ? await post('schemas/check', { schema: document }) : null;
  const total = health ? health.calls : 0;
  const own = (pointer) => fields.filter((one) => one.schema_path.startsWith(`${pointer}/`) && !/^(properties|items|prefixItems|\$defs|definitions)\//.test(one.schema_path.slice(pointer.length + 1)));
  const share = (pointer) => { const sum = own(pointer).reduce((all, one) => all + one.count, 0); return sum && total ? { share: sum / total, said: `${count(sum)} of ${count(total)}`, why: own(pointer).map((one) => `${field(one.schema_path)[2].textContent}: ${models(one.models)}`).join('; ') } : null; };
  const figure = (label, value) => h('div', h('dt', {}, label), h('dd', {}, value));
  const valid = health && total ? 1 - (health.stages.failed || 0) / total : null;
  const play = () => { state.draft = { schema: JSON.stringify(document, null, 2) }; state.go('/console/playground'); };
  const strict = checked && !checked.problems.length ? checked.strict : [];
  replace(main, h('div.head', h('a.button', { href: '/console/schemas', 'aria-label': 'Back to the schemas' }, icon('back')), h('h1', {}, name), h('span.space'),
    total ? h('a.button', { href: to(`schema:${name}`) }, icon('traffic'), 'View calls') : null, document ? h('button', { onclick: play }, icon('playground'), 'Playground') : null),
  health ? [h('dl.figures.small', {}, figure('calls in 30 days', count(total)), figure('valid', percent(valid)), figure('first try', percent((health.stages.first || 0) / total)), figure('retried', percent((health.stages.reasked || 0) / total)), figure('models', count(Object.keys(health.models).length))), h('div.card.by-stage', {}, stages(health), h('p.label', {}, models(health.models)))] : null,
  document ? null : h('p.note', 'The schema itself is not kept: words of calls are not recorded. Name it in the settings, or keep words for a while.', ' ', h('a', { href: '/console/about' }, 'About')),
  h('div.split.even', {},
    h('section.card', h('h2', 'Error rate by field'), document ? tree(document, undefined, { heat: share }) : null,
      !document && fields.length ? h('div.heat', {}, fields.map((one) => heat([field(one.schema_path), h('span.label', ` · ${models(one.models)}`)], one.count, total))) : null,
      fields.length ? null : h('p', { class: total ? 'good' : 'muted' }, total ? '✓ no field was violated' : 'No call has asked for it yet.')),
    document ? h('div.stack', {},
      h('section.card', h('h2', 'Strict mode'), strict.length ? [h('p.muted', 'For vendors that take only strict schemas, slipform changes this on the way and back:'), h('ul.plain', {}, strict.map((each) => h('li', {}, each)))] : checked.problems.length ? h('p.bad', {}, checked.problems[0].message) : h('p.good', '✓ already strict-mode compatible')),
      h('section.card', h('h2', 'A valid answer'), checked.example === null ? h('p.muted', 'None could be made.') : h('pre.pour', { tabindex: '0', 'aria-label': 'A valid answer' }, JSON.stringify(checked.example, null, 2)))) : null),
  document ? h('section.card', h('h2', 'How each vendor handles this schema'), ledger(checked)) : null);
  return {};
}

const LOOKS = { ok: 'good', failing: 'bad', throttled: 'warn', 'no key': 'warn' };

export async function providers(main) {
  const box = h('div.cards');
  const prices = h('section.card', {}, h('h2', 'Models'), h('p.muted', 'reading prices …'));
  replace(main, head('Providers', 'How each provider did in the last 15 minutes, and known limitations.'), h('div.stack', {}, box, prices));
  const draw = async () => replace(box, (await get('providers?window=900')).providers.map((each) => provider(each, draw)));
  await draw();
  const { models: known } = await get('prices');
  const limit = (each) => [each.requests_per_minute ? `${count(each.requests_per_minute)} calls/min` : null, each.tokens_per_minute ? `${count(each.tokens_per_minute)} tokens/min` : null, each.max_concurrent ? `${count(each.max_concurrent)} at a time` : null].filter(Boolean).join(', ') || none;
  replace(prices, h('h2', 'Models'), known.length ? table(['name', 'model', 'input, per million tokens', 'output', 'limits'], known.map((each) => [h('a', { href: to(`model:${each.name}`) }, each.name), each.model, money(each.input), money(each.output), limit(each)]), 'Models', [2, 3])
    : h('p.muted', 'No model is named in the settings, and none was called yet.'), h('p.label', {}, 'Prices are those of the settings (', h('code', 'prices'), '), else those that ship with slipform; without one, costs are not counted.'));
  return {};
}

function provider(each, draw) {
  const told = h('span.label', { 'aria-live': 'polite' });
  const check = h('button', { onclick: async () => {
    check.disabled = true;
    replace(told, 'checking …');
    try {
      const found = await post(`providers/${encodeURIComponent(each.name)}/check`);
      replace(told, h('span', { class: found.ok ? 'good' : 'bad' }, `${found.ok ? '✓' : '✗'} ${found.text}, ${ms(found.ms)}`));
    } catch (error) { replace(told, h('span.bad', {}, error.message)); }
    check.disabled = false;
  } }, 'Check now');
  const forget = (one) => h('button', { 'aria-label': `Forget that ${one.model} ${one.text}`, onclick: async () => { await del('lessons', { key: one.key, lesson: one.lesson }).catch(() => {}); await draw(); } }, 'Forget');
  const facts = [['calls', h('a', { href: to(`provider:${each.name}`) }, count(each.calls))], ['p50', ms(each.p50)], ['tokens/s', each.tokens_per_second === null ? null : count(each.tokens_per_second)],
    ['key', each.key === null ? null : each.key ? 'present' : 'missing'], ['slots', each.slots ? `${count(each.slots.used)} of ${count(each.slots.limit)} used${each.slots.waiting ? `, ${count(each.slots.waiting)} waiting` : ''}` : null],
    ...(each.loaded ? [['loaded', Object.entries(each.loaded).map(([model, memory]) => `${model}${memory ? `, ${bytes(memory)}` : ''}`).join('; ') || 'not yet']] : [])].filter(([, value]) => value !== null);
  return h('section.card', { 'data-provider': each.name }, h('div.who.head', h('h2', {}, each.name), h('span.space'), h('span', { class: `pill ${LOOKS[each.state] || ''}` }, each.state)),
    h('dl.facts', {}, facts.map(([name, value]) => h('div', h('dt', {}, name), h('dd', {}, value)))),
    Object.keys(each.errors).length ? h('p.bad', {}, Object.entries(each.errors).map(([code, number]) => `${code} ×${number}`).join(', ')) : null,
    each.downgrades.length ? [h('h3', 'Known limitations'), table(['', ''], each.downgrades.map((one) => [[h('code', {}, one.model), ` ${one.text}, for ${Math.max(1, Math.round(one.seconds / 3600))} h more`], forget(one)]), `Learnt of ${each.name}`, [1])] : null,
    each.models.length ? h('p.muted', {}, each.models.slice(0, 12).join(', '), each.models.length > 12 ? ` and ${each.models.length - 12} more` : '') : null,
    h('div.tools', {}, check, each.address ? h('code.muted', {}, each.address) : null, told));
}
