// The other pages: overview, schemas, providers, keys, API, about.
import { del, get, post } from './api.js';
import { count, h, money, ms, none, percent, replace, table } from './dom.js';

const STAGES = ['first', 'repaired', 'reasked', 'failed', 'passed', 'cached'];
const NAMES = { first: 'first try', repaired: 'repaired', reasked: 'retried', failed: 'failed', passed: 'passed', cached: 'cached' };

function chart(series) {
  const most = Math.max(1, ...series.map((step) => step.calls));
  const width = 600 / series.length;
  const bars = series.flatMap((step, index) => {
    let top = 100;
    return STAGES.filter((name) => step[name]).map((name) => {
      const height = (100 * step[name]) / most;
      top -= height;
      return h('rect', { class: name, x: index * width, y: top, width: Math.max(1, width - 1), height });
    });
  });
  return h('svg', { class: 'chart', viewBox: '0 0 600 100', preserveAspectRatio: 'none', role: 'img', 'aria-label': `Calls over time, at most ${most} in one step` }, bars);
}

export async function overview(main, state) {
  let window = 900;
  const box = h('div', {});
  const pick = h('select', { 'aria-label': 'Window', onchange: (event) => { window = Number(event.target.value); draw(); } }, [['15 minutes', 900], ['1 hour', 3600], ['1 day', 86400]].map(([name, value]) => h('option', { value }, name)));
  replace(main, h('h1', {}, 'Overview'), h('div', { class: 'row-tools' }, pick), box);
  const figure = (name, value, query) => h('div', {}, h('dt', {}, name), h('dd', {}, query ? h('a', { href: `/console/traffic?q=${encodeURIComponent(query)}` }, value) : value));
  async function draw() {
    const [found, schemas] = await Promise.all([get(`stats?window=${window}`), get('schemas')]);
    const enforced = ['first', 'repaired', 'reasked', 'failed'].reduce((sum, name) => sum + (found.stages[name] || 0), 0);
    const weak = schemas.schemas.flatMap((each) => each.fields.map((field) => [each.schema, field.schema_path, field.count])).sort((a, b) => b[2] - a[2]).slice(0, 8);
    replace(box, h('dl', { class: 'figures card' }, figure('calls', count(found.calls), ' '), figure('valid', percent(found.valid)), figure('retried', enforced ? percent((found.stages.reasked || 0) / enforced) : none, 'stage:reasked'),
      figure('failed', count(found.stages.failed || 0), 'stage:failed'), figure('p50', ms(found.p50)), figure('p95', ms(found.p95)), figure('first byte', ms(found.first_p50)), figure('slipform adds', ms(found.overhead_p50)), figure('spent', money(found.cost))),
    h('p', {}), h('div', { class: 'cards' },
      h('section', { class: 'card' }, h('h2', {}, 'Calls by where they became valid'), chart(found.series), table(STAGES.map((name) => NAMES[name]), [STAGES.map((name) => count(found.stages[name] || 0))], 'Calls by stage')),
      h('section', { class: 'card' }, h('h2', {}, 'Models'), Object.keys(found.models).length ? table(['model', ...STAGES.slice(0, 5).map((name) => NAMES[name])], Object.entries(found.models).map(([model, stages]) => [h('a', { href: `/console/traffic?q=${encodeURIComponent(`model:${model}`)}` }, model), ...STAGES.slice(0, 5).map((name) => count(stages[name] || 0))]), 'Models') : h('p', { class: 'muted' }, 'No call in this time. ', h('a', { href: '/console/playground' }, 'Make one in the playground.'))),
      h('section', { class: 'card' }, h('h2', {}, 'Fields violated most'), weak.length ? table(['schema', 'keyword', 'times'], weak, 'Weak fields') : h('p', { class: 'muted' }, 'None.'))));
  }
  await draw();
  const timer = setInterval(() => { if (!document.hidden) draw(); }, 5000);
  return { close: () => clearInterval(timer), events: {}, state };
}

export async function schemas(main) {
  const found = await get('schemas');
  replace(main, h('h1', {}, 'Schemas'), found.schemas.length ? found.schemas.map((each) => h('section', { class: 'card' }, h('h2', {}, h('a', { href: `/console/traffic?q=${encodeURIComponent(`schema:${each.schema}`)}` }, each.schema), ` · ${count(each.calls)} calls`),
    h('p', { class: 'label' }, Object.entries(each.stages).map(([name, number]) => `${NAMES[name] || name} ${number}`).join(' · '), ' — ', Object.entries(each.models).map(([name, number]) => `${name} ${number}`).join(', ')),
    each.fields.map((field) => h('div', {}, h('code', {}, field.schema_path), ` ×${field.count}`, bar(field.count / Math.max(1, each.calls)))))) : h('p', { class: 'card muted' }, 'No call with a schema yet.'));
  return {};
}

function bar(share) {
  const inner = h('div', {});
  inner.style.width = `${Math.min(100, 100 * share)}%`;
  return h('div', { class: 'bar', role: 'img', 'aria-label': percent(share) }, inner);
}

export async function providers(main) {
  const found = await get('providers');
  replace(main, h('h1', {}, 'Providers'), h('div', { class: 'cards' }, found.providers.map((each) => h('section', { class: 'card' }, h('h2', {}, each.name),
    h('p', { class: 'label' }, `${count(each.calls)} calls · p50 ${ms(each.p50)}`),
    Object.keys(each.errors).length ? h('p', { class: 'bad' }, Object.entries(each.errors).map(([code, number]) => `${code} ×${number}`).join(', ')) : null,
    each.downgrades.length ? [h('h3', {}, 'Learnt'), h('ul', {}, each.downgrades.map((one) => h('li', {}, `${one.lesson} (${one.key}), for ${Math.round(one.seconds / 3600)} h more`)))] : null,
    each.models.length ? h('p', { class: 'muted' }, each.models.slice(0, 12).join(', ')) : null))));
  return {};
}

export async function keys(main) {
  const found = await get('keys');
  replace(main, h('h1', {}, 'Keys'), found.keys.length ? h('div', { class: 'card' }, table(['name', 'id', 'models', 'per minute', 'budget', 'expires', 'state'], found.keys.map((key) => [key.name, h('code', {}, key.id), key.models ? key.models.join(', ') : 'all', key.requests_per_minute || none, key.budget || none, key.expires || none, key.disabled ? 'disabled' : key.operator ? 'operator' : 'in use']), 'Keys'))
    : h('p', { class: 'card' }, 'Anybody who reaches this server may call it. ', h('code', {}, 'slipform keys add NAME'), ' makes the first key.'));
  return {};
}

export async function api(main) {
  const document = await (await fetch('/openapi.json')).json().catch(() => null);
  if (!document || !document.paths) { replace(main, h('h1', {}, 'API'), h('p', { class: 'card' }, 'The API document needs an operator’s key: see /openapi.json.')); return {}; }
  replace(main, h('h1', {}, 'API'), h('p', {}, 'Try calls in the ', h('a', { href: '/console/playground' }, 'playground'), '; the document is ', h('a', { href: '/openapi.json' }, 'openapi.json'), '.'),
    Object.entries(document.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) => h('details', { class: 'card' }, h('summary', {}, h('b', {}, method.toUpperCase()), ' ', h('code', {}, path), ` ${operation.summary || ''}`),
      table(['status', 'meaning'], Object.entries(operation.responses || {}).map(([status, response]) => [status, response.description || '']), `Responses of ${path}`)))));
  return {};
}

export async function about(main, state) {
  const me = await get('me');
  const trace = me.traces;
  replace(main, h('h1', {}, 'About'), h('div', { class: 'card' }, table(['', ''], [['version', me.version], ['build', me.build], ['signed in as', me.operator || 'who has the printed link'], ['configuration', `generation ${me.generation}`],
    ['words of calls', trace.until ? `kept until ${new Date(trace.until * 1000).toLocaleTimeString('en-GB')}` : { off: 'not kept', failures: 'kept of failed calls', on: 'kept' }[trace.mode]],
    ['kept in memory', `${count(me.kept.rows)} calls, ${count(me.kept.bytes)} bytes; ${count(me.kept.traces)} with their words, ${count(me.kept.trace_bytes)} bytes`]], 'About')),
  h('div', { class: 'row-tools' }, h('button', { onclick: async () => { await del('requests'); about(main, state); } }, 'forget all calls'),
    h('button', { onclick: async () => { await post('tracing', { minutes: 10 }); state.refresh(); } }, 'keep words for 10 minutes'), h('button', { onclick: async () => { await del('tracing'); state.refresh(); } }, 'stop keeping words')));
  return {};
}
