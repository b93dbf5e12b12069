// Talk to the server: JSON in and out, one stream of events, and calls of the playground.

const BASE = '/console/api/v1/';

export class ApiError extends Error {
  constructor(status, body) {
    const error = (body && body.error) || {};
    super(error.message || `The server answered ${status}`);
    this.status = status;
    this.code = error.code || error.type || '';
  }
}

async function request(method, path, body) {
  const options = { method, headers: {}, credentials: 'same-origin' };
  if (method !== 'GET') options.headers = { 'content-type': 'application/json', 'x-slipform-console': '1' };
  if (body !== undefined) options.body = JSON.stringify(body);
  const response = await fetch(BASE + path, options);
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new ApiError(response.status, answer);
  return answer;
}

export const get = (path) => request('GET', path);
export const post = (path, body) => request('POST', path, body || {});
export const del = (path) => request('DELETE', path, {});

/** Events as they come; reconnects by itself, with longer and longer pauses, and tells whether it is connected. */
export function listen(handlers, onState) {
  let source = null;
  let pause = 1000;
  let timer = 0;
  let closed = false;
  const open = () => {
    source = new EventSource(`${BASE}events`);
    source.addEventListener('hello', () => { pause = 1000; onState(true); });
    for (const [name, handler] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => handler(JSON.parse(event.data)));
    }
    source.onerror = () => {
      source.close();
      onState(false);
      if (!closed) timer = setTimeout(open, pause);
      pause = Math.min(pause * 2, 30000);
    };
  };
  const visibility = () => {
    if (document.hidden && source) { source.close(); source = null; onState(false); }
    else if (!document.hidden && !source && !closed) open();
  };
  document.addEventListener('visibilitychange', visibility);
  if (!document.hidden) open();
  return () => { closed = true; clearTimeout(timer); document.removeEventListener('visibilitychange', visibility); if (source) source.close(); };
}

/** One call of the playground: text as it comes, then what is known of it. */
export async function play(body, { onText, onHeaders, signal }) {
  const response = await fetch(`${BASE}play`, {
    method: 'POST', headers: { 'content-type': 'application/json', 'x-slipform-console': '1' }, body: JSON.stringify(body), signal, credentials: 'same-origin',
  });
  onHeaders(response.headers);
  if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => null));
  const decoder = new TextDecoder();
  let rest = '';
  let report = null;
  let usage = null;
  for await (const part of chunks(response.body)) {
    rest += decoder.decode(part, { stream: true });
    const events = rest.split('\n\n');
    rest = events.pop();
    for (const event of events) {
      const data = event.split('\n').filter((line) => line.startsWith('data: ')).map((line) => line.slice(6)).join('\n');
      if (!data || data === '[DONE]') continue;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(200, chunk);
      const delta = chunk.choices && chunk.choices[0] && chunk.choices[0].delta;
      if (delta && delta.content) onText(delta.content);
      if (chunk.usage) usage = chunk.usage;
      if (chunk.slipform) report = chunk.slipform;
    }
  }
  return { report, usage };
}

async function* chunks(stream) {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.releaseLock();
  }
}
