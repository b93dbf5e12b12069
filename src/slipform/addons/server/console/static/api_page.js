// The API as pages: every path, what it answers, and a way to try it whose stream is shown as it comes.
import { call, get, texts } from './api.js';
import { h, head, icon, replace, table } from './dom.js';
import { PROMPT, SCHEMA } from './sample.js';

const ASKED = { type: 'json_schema', json_schema: { name: 'order', schema: SCHEMA } };
const EXAMPLES = {
  '/v1/chat/completions': { messages: [{ role: 'user', content: PROMPT }], response_format: ASKED, stream: true },
  '/v1/responses': { input: PROMPT, text: { format: { type: 'json_schema', name: 'order', schema: SCHEMA } }, stream: true },
  '/v1/messages': { max_tokens: 500, messages: [{ role: 'user', content: PROMPT }], output_config: { format: { type: 'json_schema', schema: SCHEMA } }, stream: true },
};
const LARGEST = 200000;

export async function api(main) {
  const [found, known] = await Promise.all([get('openapi'), get('models')]);
  const operations = Object.entries(found.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) => ({ path, method, operation })));
  const box = h('div.stack');
  const search = h('input', { type: 'search', id: 'search', placeholder: 'find a path', 'aria-label': 'Find a path', oninput: () => draw(search.value.trim().toLowerCase()) });
  const draw = (words) => replace(box, operations.filter((each) => `${each.method} ${each.path} ${each.operation.summary || ''}`.toLowerCase().includes(words)).map((each) => operationView(each, known.default)));
  replace(main, head('API', 'Point any OpenAI, Anthropic or Google client at this address; these are its paths. What you try here runs through the same engine.', h('a.button', { href: '/openapi.json', target: '_blank' }, icon('open'), 'openapi.json')), h('div.tools', h('div.search', {}, icon('search'), search)), box);
  draw('');
  return {};
}

function operationView({ path, method, operation }, model) {
  const node = h('details.card.op', h('summary', h('span', { class: `method ${method}` }, method.toUpperCase()), h('code', {}, path), h('span.muted', {}, operation.summary || '')));
  node.addEventListener('toggle', () => {
    if (!node.open || node.children.length > 1) return;
    const example = EXAMPLES[path];
    node.append(h('div', {}, operation.description ? h('p.muted', {}, operation.description) : null, example ? tryIt(path, { model, ...example }) : method === 'get' && !path.includes('{') ? readIt(path) : null,
      table(['status', 'meaning'], Object.entries(operation.responses || {}).map(([status, response]) => [status, response.description || '']), `Responses of ${path}`)));
  });
  return node;
}

function readIt(path) {
  const out = h('div', { 'aria-live': 'polite' });
  return [h('div.tools', h('button', { onclick: async () => {
    const response = await fetch(path);
    replace(out, h('p.label', `${response.status} ${response.headers.get('content-type') || ''}`), h('pre.reply', { tabindex: '0', 'aria-label': 'Reply' }, (await response.text()).slice(0, LARGEST)));
  } }, icon('play'), 'Try it')), out];
}

function tryIt(path, example) {
  const body = h('textarea', { value: JSON.stringify(example, null, 2), rows: '12', spellcheck: 'false', 'aria-label': `Body of ${path}` });
  const out = h('div', { 'aria-live': 'polite' });
  let running = null;
  const stop = h('button', { disabled: true, onclick: () => running?.abort() }, icon('stop'), 'Stop');
  const run = h('button.main', { onclick: async () => {
    running = new AbortController();
    run.disabled = true;
    stop.disabled = false;
    try {
      const response = await call(path, body.value, running.signal);
      const id = response.headers.get('x-slipform-call');
      const reply = h('pre.reply', { tabindex: '0', 'aria-label': 'Reply' });
      const headers = [...response.headers].filter(([name]) => name.startsWith('x-slipform-'));
      replace(out, h('p.label', `${response.status} ${response.headers.get('content-type') || ''} `, id ? h('a', { href: `/console/r/${id}` }, 'see the pour') : null), h('div.meta', {}, headers.map(([name, value]) => h('span.chip', `${name.slice(11)} ${value.slice(0, 60)}`))), reply);
      let size = 0;
      for await (const piece of texts(response.body)) {
        size += piece.length;
        if (size <= LARGEST) reply.append(h('span', {}, piece));
        reply.scrollTop = reply.scrollHeight;
      }
    } catch (error) { if (error.name !== 'AbortError') out.append(h('p.bad', {}, error.message)); else out.append(h('p.muted', 'stopped')); }
    run.disabled = false;
    stop.disabled = true;
  } }, icon('play'), 'Try it');
  return [body, h('div.tools', {}, run, stop), out];
}
