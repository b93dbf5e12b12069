// Talk to the server: JSON in and out, one stream of events, and calls of the playground.

const BASE = '/console/api/v1/';
const OWN = { 'content-type': 'application/json', 'x-slipform-console': '1' };

export class ApiError extends Error {
  constructor(status, body) {
    const error = (body?.error) || {};
    super(typeof error === 'string' ? error : error.message || `The server answered ${status}`);
    this.status = status;
    this.code = error.code || error.type || '';
  }
}

async function request(method, path, body) {
  const options = { method, headers: method === 'GET' ? {} : OWN, credentials: 'same-origin' };
  if (body !== undefined) options.body = JSON.stringify(body);
  const response = await fetch(BASE + path, options);
  const answer = await response.json().catch(() => null);
  if (response.status === 401 && path !== 'session') window.dispatchEvent(new Event('signedout'));
  if (!response.ok) throw new ApiError(response.status, answer);
  return answer;
}

export const get = (path) => request('GET', path);
export const post = (path, body) => request('POST', path, body || {});
export const put = (path, body) => request('PUT', path, body || {});
export const del = (path, body) => request('DELETE', path, body || {});

/** Events as they come; reconnects by itself, with longer and longer pauses, from where it was, and tells whether it is connected. */
export function listen(handlers, onState, watched = '') {
  let source = null;
  let pause = 1000;
  let timer = 0;
  let closed = false;
  let last = '';
  const open = () => {
    source = new EventSource(`${BASE}events?${new URLSearchParams({ watch: watched, after: last })}`);
    let fields = [];
    // Rows are lists, in the order of the fields that are told first.
    const take = (handler) => (event) => {
      last = event.lastEventId;
      const data = JSON.parse(event.data);
      handler(Array.isArray(data) ? Object.fromEntries(fields.map((name, at) => [name, data[at]])) : data);
    };
    source.addEventListener('hello', take((hello) => { pause = 1000; ({ fields } = hello); onState(true, hello); }));
    for (const [name, handler] of Object.entries(handlers)) source.addEventListener(name, take(handler));
    source.onerror = () => {
      source.close();
      onState(false);
      if (!closed) timer = setTimeout(open, pause);
      pause = Math.min(pause * 2, 30000);
    };
  };
  const visibility = () => {
    if (document.hidden && source) { source.close(); source = null; clearTimeout(timer); onState(false); }
    else if (!document.hidden && !source && !closed) open();
  };
  document.addEventListener('visibilitychange', visibility);
  if (!document.hidden) open();
  return () => { closed = true; clearTimeout(timer); document.removeEventListener('visibilitychange', visibility); if (source) source.close(); };
}

/** A call of any API that slipform serves, made by the console: the response, whose body may be a stream. */
export function call(path, body, signal) {
  return fetch(`${BASE}play?path=${encodeURIComponent(path)}`, { method: 'POST', headers: OWN, body: typeof body === 'string' ? body : JSON.stringify(body), signal, credentials: 'same-origin' });
}

/** One call of the playground: text as it comes, then what is known of it. */
export async function play(body, { onText, onHeaders, signal }) {
  const response = await call('/v1/chat/completions', body, signal);
  onHeaders(response.headers);
  if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => null));
  let report = null;
  let usage = null;
  const calls = [];
  for await (const data of events(response.body)) {
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(200, chunk);
    const delta = chunk.choices && chunk.choices[0]?.delta;
    if (delta?.content) onText(delta.content);
    for (const piece of delta?.tool_calls || []) {
      const call = (calls[piece.index] ||= { id: '', type: 'function', function: { name: '', arguments: '' } });
      call.id ||= piece.id || '';
      call.function.name ||= piece.function?.name || '';
      call.function.arguments += piece.function?.arguments || '';
    }
    if (chunk.usage) usage = chunk.usage;
    if (chunk.slipform) report = chunk.slipform;
  }
  return { report, usage, calls: calls.filter(Boolean) };
}

/** The data of server-sent events, one by one. */
async function* events(stream) {
  let rest = '';
  for await (const text of texts(stream)) {
    rest += text;
    const found = rest.split('\n\n');
    rest = found.pop();
    for (const event of found) {
      const data = event.split('\n').filter((line) => line.startsWith('data: ')).map((line) => line.slice(6)).join('\n');
      if (data && data !== '[DONE]') yield data;
    }
  }
}

/** The text of a response as it comes. */
export async function* texts(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield decoder.decode(value, { stream: true });
    }
  } finally {
    reader.releaseLock();
  }
}
